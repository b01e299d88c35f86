"""Gradients at the softmax of attention equal their formulas (benchmarks/softmax_gradients.py)."""

import pytest
import torch

from benchmarks.softmax_gradients import MEASURES, gradients, jacobian_norm
from experiments.config.run_config import RunConfig
from experiments.device import seed_everything
from model.network import build_model
from tests.small_training import PIECES, SIZES, pairs


def test_the_norm_is_that_of_the_softmaxs_jacobian():
    scores_M = torch.tensor([0.3, -1.0, 2.5, 0.0], dtype=torch.float64)
    jacobian_MM = torch.autograd.functional.jacobian(lambda scores: scores.softmax(-1), scores_M)
    assert jacobian_norm(scores_M.softmax(-1)).item() == pytest.approx(jacobian_MM.norm().item())


@pytest.mark.parametrize("kind", ["scaled_dot", "dot"])
def test_gradients_are_those_of_a_training_step(kind):
    """The norm over all parameters equals that of the same loss, computed directly."""
    sizes = SIZES.model_copy(update={"dropout": 0.0, "compatibility": kind})
    config, batch = RunConfig(model=sizes), pairs(1)
    seed_everything(1)
    found = gradients(build_model(sizes, PIECES).train(), config, batch)
    assert set(found) == set(MEASURES) and all(value > 0 for value in found.values())
    seed_everything(1)
    model = build_model(sizes, PIECES).train()
    logits = model.logits(model(batch.source, batch.source != 0, batch.target_input)).flatten(0, 1).log_softmax(-1)
    target = batch.target_output.flatten()
    smooth = config.training.label_smoothing
    right = logits.gather(1, target[:, None])[:, 0]
    others = (logits.sum(1) - right) * smooth / (PIECES - 1)
    loss = -((1 - smooth) * right + others)[target != 0].sum() / batch.num_target_tokens
    loss.backward()
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    assert found["all"] == pytest.approx(torch.nn.utils.get_total_norm(grads).item(), rel=1e-4)
