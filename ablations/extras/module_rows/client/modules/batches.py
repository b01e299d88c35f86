"""Collect outputs of modules and heads in training batches, for `mean` and `resample`."""

from __future__ import annotations

from typing import Any, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from .heads import HEADS, projection
from .selectors import FROM_BATCHES, Found, Line

BATCHES, BANK = 100, 1024  # maximum number of batches; number of stored outputs from which `resample` draws


class _Sum:
    """The sum of outputs over all positions of all batches."""

    def __init__(self, _: torch.Generator) -> None:
        self.sum: Any = 0
        self.places = 0

    def add(self, rows: Tensor) -> None:
        """Add the outputs (N, D) of one batch."""
        self.sum = self.sum + rows.double().sum(0)
        self.places += len(rows)

    def result(self) -> Tensor:
        """Return the mean output, of shape (1, D)."""
        mean: Tensor = (self.sum / max(1, self.places)).float().unsqueeze(0)
        return mean


class _Bank:
    """BANK outputs, each drawn uniformly from all positions of all batches, with replacement."""

    def __init__(self, draws: torch.Generator) -> None:
        self.draws, self.places = draws, 0
        self.rows: Any = None

    def add(self, rows: Tensor) -> None:
        """Add the outputs (N, D) of one batch.

        Each stored output is replaced by one of the new outputs with probability N / (number of positions so far).
        """
        if not len(rows):
            return
        self.places += len(rows)
        new = rows[torch.randint(len(rows), (BANK,), generator=self.draws).to(rows.device)]
        taken = torch.rand(BANK, 1, generator=self.draws, dtype=torch.float64) < len(rows) / self.places
        self.rows = new if self.rows is None else torch.where(taken.to(rows.device), new, self.rows)

    def result(self) -> Tensor:
        """Return the stored outputs, of shape (BANK, D)."""
        bank: Tensor = self.rows
        return bank


def from_batches(
    model: nn.Module, found: Found, batches: Sequence[Any], saved: Mapping[str, Tensor] | None
) -> dict[tuple[str, str], Tensor]:
    """Return the mean output (1, D) or BANK outputs (BANK, D) per (name of module, action).

    D is the last dimension of the output. All other positions count equally. saved: a state_dict that contains these
    outputs. Raises UserError if neither batches nor `saved` are given, and for outputs of convolutions.
    """
    draws, hooks = torch.Generator().manual_seed(0), []
    kept: dict[tuple[str, str], Any] = {}

    def take(key: tuple[str, str], output: Any) -> None:
        rows = (output[0] if isinstance(output, tuple) else output).detach()
        if key in images and rows.dim() > 3:
            raise images[key].refused(f"{key[0]} gives images, and a mean is one of the last dimension")
        kept[key].add(rows.flatten(0, -2))

    images: dict[tuple[str, str], Line] = {}
    for line in [line for line in found if line.action in FROM_BATCHES]:
        for name, module in found[line].items():
            key = (name, line.action)
            if saved is None and not batches:
                raise line.refused("it needs batches of the training: context.ablate(model, batches)")
            if isinstance(module, nn.modules.conv._ConvNd):
                raise line.refused(f"{name} is a convolution, and a mean is one of the last dimension")
            if any(isinstance(inner, (nn.modules.conv._ConvNd, nn.BatchNorm2d)) for inner in module.modules()):
                images[key] = line
            place = projection(line, name, module)[0] if line.heads else module
            if key in kept:  # another line with other heads of the same module
                continue
            kept[key] = (_Sum if line.action == "mean" else _Bank)(draws)
            if line.heads:
                hooks.append(place.register_forward_pre_hook(lambda _, args, key=key: take(key, args[0])))
            else:
                hooks.append(place.register_forward_hook(lambda _, __, output, key=key: take(key, output)))
    if hooks and saved is None:
        run(model, batches)
    for hook in hooks:
        hook.remove()
    if saved is not None:
        places = {(name, action): (f"{name}.value", f"{name}.{HEADS}.{action}") for name, action in kept}
        return {key: saved[place if place in saved else of_heads] for key, (place, of_heads) in places.items()}
    return {key: one.result() for key, one in kept.items()}


def run(model: nn.Module, batches: Iterable[Any]) -> None:
    """Run forward passes without gradients and dropout."""
    training, like = model.training, next(model.parameters(), torch.empty(0))
    with torch.no_grad(), torch.random.fork_rng([like.device] if like.is_cuda else []):
        model.eval()
        for batch in batches:
            moved = tree_map_only(Tensor, lambda tensor: tensor.to(like.device), batch)
            named = moved if isinstance(moved, Mapping) else {}
            model(*(moved if isinstance(moved, (tuple, list)) else () if named else (moved,)), **named)
        model.train(training)
