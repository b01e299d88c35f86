"""Tests of dropout (section 5.4) and of our random bits."""

import math

import pytest
import torch

from model.parts.dropout import LEVELS, Dropout, dropout


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.3, 0.5])
def test_rate_and_mean(rate):
    torch.manual_seed(0)
    count = 2_000_001  # odd: the last draw decides fewer than four elements
    dropped = dropout(torch.ones(count), rate)
    zeros = (dropped == 0).float().mean().item()
    assert zeros == pytest.approx(rate, abs=5 * math.sqrt(rate * (1 - rate) / count))
    assert dropped.mean().item() == pytest.approx(1, abs=5 * math.sqrt(rate / (1 - rate) / count))
    kept = dropped[dropped != 0]
    assert (kept == kept[0]).all() and kept[0].item() == pytest.approx(1 / (1 - rate), abs=1 / LEVELS)


def test_neighbours_are_independent():
    """Four elements share a 64-bit draw, so the joint frequency of each pair must be the product of its frequencies."""
    torch.manual_seed(1)
    gone = (dropout(torch.ones(500_000, 4), 0.3) == 0).double()
    joint = gone.T @ gone / len(gone)
    expected = torch.full((4, 4), 0.09).double().fill_diagonal_(0.3)
    torch.testing.assert_close(joint, expected, atol=0.003, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_type_is_kept_and_gradient_follows_the_choice(dtype):
    torch.manual_seed(2)
    x = torch.randn(300, dtype=dtype).add(5).requires_grad_()
    y = dropout(x, 0.4)
    y.backward(torch.ones_like(y))
    assert y.dtype == dtype and x.grad.dtype == dtype
    assert torch.equal(x.grad == 0, y == 0)
    torch.testing.assert_close(x.grad[y != 0] * x[y != 0], y[y != 0])


def test_the_seed_decides():
    first, again, other = (torch.manual_seed(s) and dropout(torch.ones(100), 0.5) for s in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_nothing_happens_in_evaluation_or_at_rate_zero():
    x = torch.randn(10)
    assert Dropout(0.5).eval()(x) is x
    assert Dropout(0.0).train()(x) is x
    assert not torch.equal(Dropout(0.5).train()(x), x)


@pytest.mark.parametrize("knob", ["dropout", "attention_dropout", "activation_dropout"])
@pytest.mark.parametrize("kernel", ["plain", "sdpa"])
def test_every_knob_acts_in_training_only(small_model, knob, kernel):
    model = small_model(**{"dropout": 0.0, knob: 0.5})
    model.set_attention_kernel(kernel)
    source = torch.randint(20, (2, 5))
    still = model(source, None, source)
    assert torch.equal(still, model(source, None, source))
    model.train()
    assert not torch.equal(model(source, None, source), model(source, None, source))
    off = small_model(dropout=0.0).train()
    torch.testing.assert_close(off(source, None, source), still)


def test_dropout_sits_on_sublayers_and_embeddings_only(small_model, monkeypatch):
    """Base applies dropout at 1 + 2 N places in the encoder and 1 + 3 N in the decoder, none inside attention."""
    seen = []
    monkeypatch.setattr("model.parts.dropout.dropout", lambda x, rate: seen.append(rate) or x)
    model = small_model().train()
    source = torch.randint(20, (2, 5))
    model(source, None, source)
    assert [rate for rate in seen if rate > 0] == [0.1] * (1 + 2 * 2 + 1 + 3 * 2)
