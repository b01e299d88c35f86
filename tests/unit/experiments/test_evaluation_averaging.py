"""Tests of averages of checkpoints."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from experiments.evaluation import load_network
from experiments.evaluation.load_network import average_weights, kept_average
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


def test_an_average_is_made_once_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (2, 4, 6):
        save(tmp_path, step, {"w": torch.full((2,), float(step))}, {}, {})
    first = kept_average(tmp_path, 2, 2)
    assert torch.equal(first["w"], torch.full((2,), 5.0))
    monkeypatch.setattr(load_network, "average_weights", lambda _: pytest.fail("averaged again"))
    assert torch.equal(kept_average(tmp_path, 2, 2)["w"], first["w"])
    monkeypatch.undo()
    assert torch.equal(kept_average(tmp_path, 3, 2)["w"], torch.full((2,), 4.0))


def test_a_damaged_average_is_made_anew(tmp_path: Path) -> None:
    for step in (2, 4):
        save(tmp_path, step, {"w": torch.full((2,), float(step))}, {}, {})
    kept_average(tmp_path, 2, 2)
    (file,) = (tmp_path / "averages").glob("*/model.safetensors")
    file.write_bytes(b"torn")
    assert torch.equal(kept_average(tmp_path, 2, 2)["w"], torch.full((2,), 3.0))
