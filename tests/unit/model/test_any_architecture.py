"""Properties that hold for every network, tested on random architectures (tests/lines.py)."""

import pytest
import torch

from model.config import ModelConfig
from model.cost import active_params, num_params
from model.layers.position_wise.experts import Experts
from model.network import build_model
from model.protocol import Network
from tests.lines import random_config
from tests.slow import OF_SEEDS, mostly_slow
from tests.unit.model.test_cached_decoding import Beams

LANGUAGE_MODELS = 1000  # from this seed on: no encoder, nothing but the text so far is read
SEEDS = [
    *mostly_slow(range(100), 12, OF_SEEDS),
    *mostly_slow(range(LANGUAGE_MODELS, LANGUAGE_MODELS + 30), 3, OF_SEEDS),
]
B, S, T, K = 3, 6, 7, 3


def network(seed: int, **settings: object) -> Network:
    """Return the network in eval mode and float64, with all weights changed so that ignoring one changes the output."""
    torch.manual_seed(seed)
    settings |= {"encoder": ""} if seed >= LANGUAGE_MODELS else {}
    model = build_model(random_config(seed, **settings), 20).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() < 2 or not parameter.any():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


def sentences(model: Network) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return a source, its mask with one full sentence, and a target."""
    mask_BS = torch.arange(S) < torch.tensor([[S], [4], [1]])
    source_BS, target_BT = torch.randint(20, (B, S)), torch.randint(20, (B, T))
    return (source_BS, mask_BS, target_BT) if model.config.encoder else (source_BS[:, :0], mask_BS[:, :0], target_BT)


@pytest.mark.parametrize("seed", SEEDS)
@torch.inference_mode()
def test_steps_of_beams_with_random_ancestors_equal_one_pass_each(seed: int) -> None:
    model = network(seed)
    model.quick = False
    check_steps(model)


def check_steps(model: Network) -> None:
    """Check that steps of K beams give the results of one full pass over each beam's prefix."""
    source_BS, mask_BS, _ = sentences(model)
    memory = model.encode(source_BS, mask_BS)
    state, beams, batch = model.start_decoding(memory, mask_BS, K, T), Beams(B, K), B
    for t in range(T):
        if t == 4:  # a sentence has ended, and the others change their places
            state.keep([2, 0])
            memory, mask_BS, batch = memory[[2, 0]], mask_BS[[2, 0]], 2
            beams.pieces, beams.slots = ([x[2], x[0]] for x in (beams.pieces, beams.slots))
        tokens_BK = torch.randint(20, (batch, K))
        beams.advance(torch.randint(K, (batch, K)), tokens_BK)
        hidden_BKD = model.decode_step(tokens_BK, state, beams.visible())
        logits_BKW = model.next_logits(hidden_BKD, state)
        for k in range(K):
            expected = model.decode(torch.tensor([pieces[k] for pieces in beams.pieces]), memory, mask_BS)[:, -1]
            torch.testing.assert_close(hidden_BKD[:, k], expected, atol=1e-10, rtol=1e-10)
            torch.testing.assert_close(logits_BKW[:, k], model.logits(expected), atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("seed", SEEDS)
@torch.inference_mode()
def test_a_sentence_alone_equals_the_same_in_a_batch_with_padding(seed: int) -> None:
    check_alone(network(seed))


def check_alone(model: Network) -> None:
    """Check that a sentence's hidden states do not depend on padding or on other sentences of the batch."""
    source_BS, mask_BS, target_BT = sentences(model)
    together = model(source_BS, mask_BS, target_BT)
    other = model(torch.where(mask_BS, source_BS, (source_BS + 7) % 20), mask_BS, target_BT)
    torch.testing.assert_close(other, together, atol=0, rtol=0)  # padding may hold any piece
    for b in range(B):
        alone = model(source_BS[b : b + 1, : int(mask_BS[b].sum())], None, target_BT[b : b + 1])
        torch.testing.assert_close(alone[0], together[b], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("seed", SEEDS)
@torch.inference_mode()
def test_nothing_leaks_from_the_future(seed: int) -> None:
    check_future(network(seed))


def check_future(model: Network) -> None:
    """Check that hidden states do not depend on later pieces, and that those of later positions do."""
    source_BS, mask_BS, target_BT = sentences(model)
    changed = target_BT.clone()
    changed[:, 4:] = (changed[:, 4:] + 5) % 20
    one, other = model(source_BS, mask_BS, target_BT), model(source_BS, mask_BS, changed)
    # Later pieces change how many positions share a matrix product of an expert, and with it the last bit.
    rounding = 1e-12 if "experts" in model.config.decoder else 0
    torch.testing.assert_close(one[:, :4], other[:, :4], atol=rounding, rtol=rounding)
    if model.config.residual:  # without, the last sub-layer alone may make the same of every piece
        assert not torch.equal(one[:, 4:], other[:, 4:])


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_reach_every_parameter(seed: int) -> None:
    check_gradients(network(seed))


def check_gradients(model: Network) -> None:
    """Check that the loss depends on every parameter."""
    model.train()
    source_BS, mask_BS, target_BT = sentences(model)
    hidden = model(source_BS, mask_BS, target_BT)
    loss = (model.logits(hidden) * torch.randn(B, T, 20, dtype=torch.float64)).sum()
    loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name


@pytest.mark.parametrize("seed", [*range(200), *range(LANGUAGE_MODELS, LANGUAGE_MODELS + 60)])
def test_the_count_equals_the_module(seed: int) -> None:
    check_count(random_config(seed, **({"encoder": ""} if seed >= LANGUAGE_MODELS else {})))


def check_count(config: ModelConfig) -> None:
    """Check that the parameters counted from the text equal those of the built network."""
    rows = 64  # the vocabulary needs no padding rows
    built = build_model(config, rows, device="meta")
    total = sum(parameter.numel() for parameter in built.parameters())
    assert num_params(config, rows) == total
    for part in built.modules():
        if isinstance(part, Experts):
            one = sum(parameter.numel() for parameter in part.experts[0].parameters())
            total -= (len(part.experts) - part.active) * one
    assert active_params(config, rows) == total
