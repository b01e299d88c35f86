"""Averages of checkpoints."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.evaluation.averaging import average_weights
from experiments.training.checkpoint import save


def checkpoints(folder: Path, *weights: dict[str, Tensor]) -> list[Path]:
    return [save(folder, step, tensors, {}, {}) for step, tensors in enumerate(weights, start=1)]


def test_the_mean_is_taken_in_float64_and_kept_in_the_weights_type(tmp_path: Path) -> None:
    values = [1e8, 1.0, -1e8, 3.0]  # fp32 sums would lose the ones
    paths = checkpoints(tmp_path, *({"w": torch.full((2, 3), v), "n": torch.tensor([7])} for v in values))
    found = average_weights(paths)
    assert torch.equal(found["w"], torch.full((2, 3), 1.0))
    assert found["w"].dtype == torch.float32
    assert torch.equal(found["n"], torch.tensor([7]))


def test_one_checkpoint_is_its_own_mean(tmp_path: Path) -> None:
    weights = {"w": torch.randn(3), "v": torch.randn(2, dtype=torch.float64)}
    found = average_weights(checkpoints(tmp_path, weights))
    assert all(torch.equal(found[name], weights[name]) for name in weights)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"w": torch.zeros(2), "x": torch.zeros(1)}, "same tensors.*x"),
        ({"w": torch.zeros(3)}, "shape"),
        ({"w": torch.zeros(2, dtype=torch.float64)}, "type"),
    ],
)
def test_what_does_not_match_is_refused(tmp_path: Path, other: dict[str, Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        average_weights(checkpoints(tmp_path, {"w": torch.zeros(2)}, other))


def test_integers_that_differ_have_no_average(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="integers"):
        average_weights(checkpoints(tmp_path, {"n": torch.tensor([1])}, {"n": torch.tensor([2])}))


def test_nothing_to_average_is_refused() -> None:
    with pytest.raises(ValueError, match="no checkpoint"):
        average_weights([])
