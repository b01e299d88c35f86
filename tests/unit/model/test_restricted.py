"""A search's state that is restricted to some pieces gives these pieces' scores, and each sentence only its own."""

import pytest
import torch

from model.config import ModelConfig
from model.ensemble import Ensemble
from model.factory import build_model
from model.fast.int8 import int8_works, to_int8
from model.protocol import Network
from tests.slow import mostly_slow
from tests.unit.model.test_any_architecture import LANGUAGE_MODELS, B, K, S, T, network, sentences
from tests.unit.model.test_cached_decoding import Beams

SIZES = {"num_layers": 1, "d_model": 8, "d_ff": 16, "num_heads": 2, "d_k": 4, "d_v": 4}
NETWORKS = {
    "paper": {},
    "two tied": {"tying": "decoder"},
    "inputs tied": {"tying": "inputs"},
    "untied": {"tying": "none"},
    "factorised": {"embedding_size": 4},
    "fixnorm": {"fixnorm": True},
    "recurrent": {"encoder": "lstm", "decoder": "lstm, cross_attention"},
    "convolutional": {"encoder": "convolution", "decoder": "convolution, cross_attention"},
}
PIECES = torch.tensor([0, 1, 2, 3, 5, 8, 13, 19])
BIAS = torch.zeros(B, len(PIECES)).masked_fill(torch.arange(8) % 3 == torch.arange(B)[:, None], -torch.inf)
BIAS[:, 2] = 0


def small(settings: dict[str, object]) -> Network:
    torch.manual_seed(1)
    return build_model(ModelConfig.model_validate(SIZES | settings), 20).double().eval()


def check(model: Network, *, exact: bool = False) -> None:
    """The same search twice: restricted, and with the whole vocabulary."""
    source_BS, mask_BS, _ = sentences(model)
    memory = model.encode(source_BS, mask_BS)
    whole, some = (model.start_decoding(memory, mask_BS, K, T) for _ in range(2))
    bias = BIAS.to(memory.dtype)
    some.restrict(PIECES, bias)
    beams, batch = Beams(B, K), B
    for t in range(T):
        if t == 4:  # a sentence has ended, and the others change their places
            for state in (whole, some):
                state.keep([2, 0])
            bias, batch = bias[[2, 0]], 2
            beams.pieces, beams.slots = ([x[2], x[0]] for x in (beams.pieces, beams.slots))
        tokens_BK = torch.randint(20, (batch, K))
        beams.advance(torch.randint(K, (batch, K)), tokens_BK)
        hidden, its_hidden = (model.decode_step(tokens_BK, state, beams.visible()) for state in (whole, some))
        expected = model.next_logits(hidden, whole)[..., PIECES] + bias[:, None]
        found = model.next_logits(its_hidden, some)
        if exact:
            assert torch.equal(found, expected)
        else:
            torch.testing.assert_close(found, expected)
        first = model.next_logits(its_hidden[:, :1], some)  # as at the beginning of a search
        torch.testing.assert_close(first, expected[:, :1])


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS.keys())
@torch.inference_mode()
def test_scores_are_those_of_the_chosen_pieces(settings: dict[str, object]) -> None:
    check(small(settings))


@pytest.mark.parametrize("seed", mostly_slow([n for n in range(40) if n < LANGUAGE_MODELS], 8))
@torch.inference_mode()
def test_any_architecture_can_be_restricted(seed: int) -> None:
    model = network(seed)
    check(model)
    model.quick = False
    check(model)


@pytest.mark.skipif(not int8_works(), reason="this torch has no exact product of 8-bit matrices")
@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS.keys())
@torch.inference_mode()
def test_products_in_8_bits_are_the_same_bits(settings: dict[str, object]) -> None:
    model = small(settings).float()
    to_int8(model)
    check(model, exact=True)


@torch.inference_mode()
def test_an_ensemble_is_the_mean_of_its_members_own_restricted_probabilities() -> None:
    members = [small({}), small({"encoder": "lstm", "decoder": "lstm, cross_attention"})]
    with torch.no_grad():
        members[1].target_embedding.weight *= 3
    model = Ensemble(members)
    source_BS, mask_BS = torch.randint(20, (B, S)), torch.ones(B, S, dtype=torch.bool)
    tokens_BK, bias = torch.randint(20, (B, 1)), BIAS.double()

    def probabilities(one: Network) -> torch.Tensor:
        state = one.start_decoding(one.encode(source_BS, mask_BS), mask_BS, 1, T)
        state.restrict(PIECES, bias)
        state.keep([1, 2])
        return one.next_logits(one.decode_step(tokens_BK[1:], state, None), state).softmax(-1)

    expected = torch.stack([probabilities(member) for member in members]).mean(0)
    found = probabilities(model)
    torch.testing.assert_close(found, expected)
    assert bool((found[:, 0] == 0).any(-1).all())
