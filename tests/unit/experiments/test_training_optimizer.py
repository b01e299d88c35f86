"""The optimizer against Adam's equations, its settings, its state."""

import pytest
import torch
from torch import nn

from experiments.config import TrainingConfig
from experiments.training.optimizers import (
    clip,
    make_optimizer,
    optimizer_tensors,
    restore_optimizer,
    set_learning_rate,
)


def _model():
    torch.manual_seed(0)
    return nn.Linear(3, 2).double()


def _steps(model, optimizer, first, last):
    for step in range(first, last + 1):
        set_learning_rate(optimizer, 0.01 * step)
        model.weight.grad = torch.full_like(model.weight, 0.1 * step)
        model.bias.grad = torch.full_like(model.bias, -0.2 * step)
        optimizer.step()


def test_updates_are_adams_with_the_papers_constants():
    model, expected = _model(), _model().weight.detach()
    _steps(model, make_optimizer(model, TrainingConfig()), 1, 4)
    m = v = torch.zeros_like(expected)
    for step in range(1, 5):  # Kingma and Ba 2015, algorithm 1
        gradient = torch.full_like(expected, 0.1 * step)
        m, v = 0.9 * m + 0.1 * gradient, 0.98 * v + 0.02 * gradient**2
        expected = expected - 0.01 * step * (m / (1 - 0.9**step)) / ((v / (1 - 0.98**step)).sqrt() + 1e-9)
    torch.testing.assert_close(model.weight, expected)


def test_weight_decay_is_decoupled_and_spares_vectors():
    plain, decayed = _model(), _model()
    _steps(plain, make_optimizer(plain, TrainingConfig()), 1, 1)
    _steps(decayed, make_optimizer(decayed, TrainingConfig(weight_decay=0.5)), 1, 1)
    torch.testing.assert_close(decayed.weight, plain.weight - 0.01 * 0.5 * _model().weight)
    assert torch.equal(decayed.bias, plain.bias)


def test_clipping_scales_all_gradients_together_and_only_if_set():
    model = _model()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 3.0)
    clip(model, 0)
    assert model.weight.grad[0, 0] == 3
    clip(model, 1.0)
    norm = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    assert norm == pytest.approx(1.0, abs=1e-5)
    assert model.weight.grad[0, 0] == model.bias.grad[0]


def test_a_restored_state_goes_on_bit_for_bit():
    straight, first = _model(), _model()
    _steps(straight, make_optimizer(straight, TrainingConfig()), 1, 6)
    optimizer = make_optimizer(first, TrainingConfig())
    _steps(first, optimizer, 1, 3)
    tensors = {k: v.clone() for k, v in optimizer_tensors(first, optimizer, 3).items()}
    assert set(tensors) == {f"{m}/{n}" for m in ("exp_avg", "exp_avg_sq") for n in ("weight", "bias")}
    fresh = make_optimizer(first, TrainingConfig())
    restore_optimizer(first, fresh, tensors, 3)
    _steps(first, fresh, 4, 6)
    assert torch.equal(first.weight, straight.weight)
    assert torch.equal(first.bias, straight.bias)


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, momentum=0.9),
        lambda parameters: torch.optim.RMSprop(parameters, momentum=0.5),
        torch.optim.Adagrad,
        torch.optim.Adamax,
        torch.optim.Adafactor,
    ],
)
def test_the_state_of_any_optimizer_is_kept_by_name(make):
    straight, first = _model(), _model()
    _steps(straight, make(straight.parameters()), 1, 6)
    optimizer = make(first.parameters())
    _steps(first, optimizer, 1, 3)
    tensors = {name: value.clone() for name, value in optimizer_tensors(first, optimizer, 3).items()}
    assert tensors
    fresh = make(first.parameters())
    restore_optimizer(first, fresh, tensors, 3)
    _steps(first, fresh, 4, 6)
    assert torch.equal(first.weight, straight.weight) and torch.equal(first.bias, straight.bias)
