"""Tests of model.softmax: it is exact in evaluation, and sampling all pieces in training gives the full loss."""

import math

import pytest
import torch

from experiments.config.run_config import RunConfig
from experiments.config.training import TrainingConfig
from experiments.training.loss import classes_loss, sampled_loss, smoothed_loss, softmax_loss
from model import cost
from model.config import ModelConfig
from model.network import build_model
from model.parts.embedding import Classes
from tests import small_training

N, D, V = 7, 8, 20


def random_tokens(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    hidden_ND = torch.randn(N, D, dtype=torch.float64, requires_grad=True)
    weight_VD = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
    return hidden_ND, weight_VD, torch.randint(V, (N,))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_sampled_softmax_of_all_pieces_is_the_whole_loss_and_its_gradient(smoothing: float) -> None:
    hidden_ND, weight_VD, target_N = random_tokens()
    whole = smoothed_loss(hidden_ND, weight_VD, target_N, V, smoothing)
    sampled = sampled_loss(hidden_ND, weight_VD, target_N, V, smoothing, V)
    for ours, theirs in zip(sampled, whole, strict=True):
        assert ours.item() == pytest.approx(theirs.item())
    gradients = [torch.autograd.grad(loss[0], (hidden_ND, weight_VD)) for loss in (whole, sampled)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_sampled_sum_of_exponentials_is_right_on_average() -> None:
    """E[exp(nll) · exp z_y] = Σ exp z for each token, so the estimate of the partition function is unbiased."""
    hidden_ND, weight_VD, target_N = random_tokens(1)
    hidden_ND, weight_VD = hidden_ND.detach(), weight_VD.detach() / 2
    z_NV = hidden_ND @ weight_VD.T
    for n in range(2):
        one, y = hidden_ND[n : n + 1], target_N[n : n + 1]
        estimates = [
            math.exp(sampled_loss(one, weight_VD, y, V, 0.0, 6)[1].item() + z_NV[n, y].item()) for _ in range(800)
        ]
        assert sum(estimates) / 800 == pytest.approx(z_NV[n].exp().sum().item(), rel=0.1)


def test_a_hierarchical_softmax_is_a_distribution_and_its_loss_is_its_likelihood() -> None:
    for vocab_size in (2, 3, V, 64, 65):
        torch.manual_seed(vocab_size)
        classes = Classes(D, vocab_size).double()
        assert (
            classes.size * (classes.output.out_features - 1) < vocab_size <= classes.size * classes.output.out_features
        )
        hidden_ND = torch.randn(N, D, dtype=torch.float64)
        weight_VD, target_N = torch.randn(vocab_size, D, dtype=torch.float64), torch.randint(vocab_size, (N,))
        log_prob_NV = classes.log_probs(hidden_ND, hidden_ND @ weight_VD.T)
        torch.testing.assert_close(log_prob_NV.exp().sum(-1), torch.ones(N, dtype=torch.float64))
        loss, nll = classes_loss(hidden_ND, weight_VD, target_N, 0.0, classes)
        expected = -log_prob_NV.gather(1, target_N[:, None]).sum()
        torch.testing.assert_close(nll, expected)
        torch.testing.assert_close(loss, expected)


def test_its_smoothing_is_that_of_each_level() -> None:
    torch.manual_seed(0)
    classes, hidden_ND = Classes(D, V).double(), torch.randn(N, D, dtype=torch.float64)
    weight_VD, target_N = torch.randn(V, D, dtype=torch.float64), torch.randint(V, (N,))
    expected = torch.zeros((), dtype=torch.float64)
    for h_D, y in zip(hidden_ND, target_N.tolist(), strict=True):
        own = range(y // classes.size * classes.size, min((y // classes.size + 1) * classes.size, V))
        for logits, right in ((classes.output(h_D), y // classes.size), (weight_VD[own] @ h_D, y - own[0])):
            wanted = torch.full_like(logits, 0.1 / (len(logits) - 1))
            wanted[right] = 0.9
            expected -= wanted @ logits.log_softmax(-1)
    torch.testing.assert_close(classes_loss(hidden_ND, weight_VD, target_N, 0.1, classes)[0], expected)


@pytest.mark.parametrize("kind", ["sampled", "hierarchical"])
def test_evaluation_is_exact_and_training_costs_less(kind: str) -> None:
    settings = {"num_layers": 1, "d_model": 8, "d_ff": 8, "num_heads": 2, "d_k": 4, "d_v": 4}
    config = ModelConfig.from_mapping(
        settings | {"softmax": kind} | ({"softmax_samples": 5} if kind == "sampled" else {})
    )
    model, full = build_model(config, 64), ModelConfig.from_mapping(settings)
    assert sum(p.numel() for p in model.parameters()) == cost.num_params(config, 64)
    extra = 8 * 8 if kind == "hierarchical" else 0
    assert cost.num_params(config, 64) == cost.num_params(full, 64) + extra
    assert cost.forward_flops(config, 64, 3, 4) == cost.forward_flops(full, 64, 3, 4) + 2 * 4 * extra
    saved = 2 * 4 * 8 * (64 - (6 if kind == "sampled" else 8 + 8))
    assert cost.training_flops(config, 64, 3, 4) == cost.training_flops(full, 64, 3, 4) - 3 * saved
    hidden_ND, target_N = torch.randn(5, 8), torch.randint(4, 64, (5,))
    log_prob_NV = model.logits(hidden_ND).log_softmax(-1)
    if kind == "hierarchical":  # log P already: a softmax leaves it as it is
        torch.testing.assert_close(log_prob_NV, model.logits(hidden_ND))
        nll = softmax_loss(model, hidden_ND, target_N, 0.0)[1]
        torch.testing.assert_close(nll, -log_prob_NV.gather(1, target_N[:, None]).sum())
    else:
        torch.testing.assert_close(model.logits(hidden_ND), hidden_ND @ model.output_weight[:64].T)


@pytest.mark.parametrize("kind", ["sampled", "hierarchical"])
def test_a_training_with_it_repeats_every_bit_and_learns(kind: str, tmp_path) -> None:  # type: ignore[no-untyped-def]
    settings = TrainingConfig(train_steps=30, warmup_steps=5, learning_rate=0.02)
    losses = []
    for folder in ("one", "two"):
        sizes = small_training.SIZES.model_copy(update={"softmax": kind, "softmax_samples": 8})
        model, facts, _ = small_training.run(tmp_path / folder, settings=settings, sizes=sizes)
        losses.append((facts["nll"], [p.sum().item() for p in model.parameters()]))
    assert losses[0] == losses[1]
    assert losses[0][0] < 3.0


def test_a_row_may_set_the_samples_of_a_sampled_softmax_alone() -> None:
    assert RunConfig().unread(["model.softmax_samples"]) == ["model.softmax_samples"]
    sampled = RunConfig(model=ModelConfig(softmax="sampled"))
    assert sampled.unread(["model.softmax_samples"]) == []
