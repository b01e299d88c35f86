"""Losses that sub-layers add to the training loss."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_collections: list[list[Tensor]] = []  # of the contexts that are open, the innermost last


@contextmanager
def collecting() -> Iterator[list[Tensor]]:
    """Collect the losses added within this context: scalars with gradients, in units of the loss of a token."""
    losses: list[Tensor] = []
    _collections.append(losses)
    try:
        yield losses
    finally:
        _collections.pop()


def add(loss: Tensor) -> None:
    """Add a loss to the innermost open context of `collecting`; without one, the loss is ignored."""
    if _collections:
        _collections[-1].append(loss)
