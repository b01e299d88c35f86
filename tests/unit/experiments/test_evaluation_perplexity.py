"""Perplexity equals a computation by hand and does not depend on batches."""

import math

import pytest
import torch

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID
from experiments.device import Device
from experiments.errors import Preempted, UserError
from experiments.evaluation import likelihood as module
from experiments.evaluation.likelihood import Likelihood, measure_likelihood
from model.config import ModelConfig
from model.network import build_model
from model.protocol import Network

CPU = Device(torch.device("cpu"), "fp32", 1)
SOURCES = [[4, 5, 6], [7], [], [8, 9, 4, 4]]
TARGETS = [[5, 5], [6, 7, 8, 9, 10], [4], []]


def small_model(positions: str = "sinusoidal") -> Network:
    torch.manual_seed(0)
    config = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4, positions=positions, max_length=6)
    return build_model(config, 12).eval()


def test_equals_a_hand_computation() -> None:
    """Two pairs under a model that gives 1/2 to one piece and 1/22 to each of the eleven others."""
    model = small_model()
    logits = torch.zeros(12)
    logits[5] = math.log(11)
    model.logits = lambda hidden: logits.expand(*hidden.shape[:-1], 12)  # type: ignore[method-assign]
    found = measure_likelihood(model, [[4], [4, 4]], [[5, 5, 6], [7]], CPU)
    halves, others = 2, 2 + 2  # 5 5 | 6 EOS and 7 EOS
    assert found.pieces == 6
    assert found.nll == pytest.approx(halves * math.log(2) + others * math.log(22), rel=1e-6)
    assert found.perplexity == pytest.approx((2**2 * 22**4) ** (1 / 6), rel=1e-6)
    assert found.right == 2 and found.token_accuracy == pytest.approx(100 / 3), "it finds 5 most probable everywhere"


def test_equals_one_sentence_at_a_time_without_padding() -> None:
    model = small_model().double()
    total, right = 0.0, 0
    for source, target in zip(SOURCES, TARGETS, strict=True):
        with torch.no_grad():
            hidden = model(torch.tensor([[*source, EOS_ID]]), None, torch.tensor([[BOS_ID, *target]]))
            log_probs = model.logits(hidden)[0].log_softmax(-1)
        total -= sum(log_probs[t, piece].item() for t, piece in enumerate([*target, EOS_ID]))
        right += sum(log_probs[t].argmax().item() == piece for t, piece in enumerate([*target, EOS_ID]))
    found = measure_likelihood(model, SOURCES, TARGETS, CPU)
    assert found.nll == pytest.approx(total, abs=1e-9)
    assert (found.pieces, found.right) == (3 + 6 + 2 + 1, right)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-4)])
def test_does_not_depend_on_batches(dtype: torch.dtype, tolerance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model().to(dtype)
    whole = measure_likelihood(model, SOURCES, TARGETS, CPU)
    assert measure_likelihood(model, SOURCES, TARGETS, CPU) == whole
    monkeypatch.setattr(module, "LOGIT_ROWS", 2)
    for tokens in (1, 8, 12):
        found = measure_likelihood(model, SOURCES, TARGETS, CPU, max_batch_tokens=tokens)
        assert found.nll == pytest.approx(whole.nll, abs=tolerance)
        assert (found.pieces, found.right) == (whole.pieces, whole.right)


def test_dropout_and_training_mode_do_not_enter() -> None:
    config = ModelConfig(num_layers=1, d_model=8, d_ff=16, num_heads=2, d_k=4, d_v=4, dropout=0.5)
    model = build_model(config, 12).train()
    first, second = (measure_likelihood(model, SOURCES, TARGETS, CPU) for _ in range(2))
    assert first == second
    assert model.training


def test_a_hopeless_model_is_infinitely_perplexed() -> None:
    assert Likelihood(nll=1e6, pieces=10).perplexity == math.inf
    assert Likelihood(nll=0.0, pieces=10).perplexity == 1


def test_mistakes_are_named() -> None:
    with pytest.raises(UserError, match="Line 2 of the reference has 7 pieces"):
        measure_likelihood(small_model("learned"), [[4], [4]], [[4], [4] * 6], CPU)
    with pytest.raises(Preempted):
        measure_likelihood(small_model(), [[4]], [[4]], CPU, should_stop=lambda: True)
