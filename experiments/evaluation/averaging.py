"""Checkpoint averaging (section 6.1: the last 5 checkpoints of base, the last 20 of big)."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from experiments.errors import UserError
from experiments.training import checkpoint, retention
from experiments.training.checkpoint import load_weights


def kept_average(attempt: Path, count: int, every: int) -> dict[str, Tensor]:
    """The mean of an attempt's last `count` checkpoints (multiples of `every`, and the last step), computed once.

    Rows with the same training and different searches read the same average from <attempt>/averages. Raises UserError
    if there are fewer checkpoints or one is damaged.
    """
    chosen = retention.last(attempt, count, every)
    path = attempt / "averages" / f"last-{count}-to-{chosen[-1].name}-every-{every}"
    if (path / "meta.json").exists():
        with contextlib.suppress(UserError):  # damaged: computed again
            return load_weights(path)
    weights = average_weights(chosen)
    with contextlib.suppress(UserError):  # a read-only or full store: computed again next time
        checkpoint.save_weights(path, weights, {"averaged": [p.name for p in chosen]})
    return weights


def average_weights(checkpoints: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights in several checkpoints' folders, summed in float64, in the weights' own types.

    Memory holds one checkpoint besides the sums. Tensors that are not floating point must be equal in all. Raises
    ValueError for different names, shapes or types, UserError for a damaged checkpoint.
    """
    if not checkpoints:
        raise ValueError("no checkpoint to average")
    first = load_weights(checkpoints[0])
    sums = {name: tensor.double() for name, tensor in first.items() if tensor.is_floating_point()}
    for path in checkpoints[1:]:
        weights = load_weights(path)
        _check_alike(first, weights, path)
        for name, total in sums.items():
            total += weights[name]
    return {n: (sums[n] / len(checkpoints)).to(t.dtype) if n in sums else t for n, t in first.items()}


def _check_alike(first: dict[str, Tensor], other: dict[str, Tensor], path: Path) -> None:
    if first.keys() != other.keys():
        different = ", ".join(sorted(first.keys() ^ other.keys())[:6])
        raise ValueError(f"{path} has other tensors than the other checkpoints: {different}")
    for name, tensor in first.items():
        if tensor.shape != other[name].shape or tensor.dtype != other[name].dtype:
            raise ValueError(f"{name} in {path} has another shape or type than in the other checkpoints")
        if not tensor.is_floating_point() and not torch.equal(tensor, other[name]):
            raise ValueError(f"{name} in {path} has other values, but integers have no average")
