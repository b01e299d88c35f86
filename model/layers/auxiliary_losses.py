"""Losses that sub-layers add to the training loss."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_collections: list[list[Tensor]] = []  # losses of each open context; the innermost context is the last one


@contextmanager
def collecting() -> Iterator[list[Tensor]]:
    """Collect the losses added within this context.

    Each loss is a scalar with a gradient, in units of the loss of one token.
    """
    losses: list[Tensor] = []
    _collections.append(losses)
    try:
        yield losses
    finally:
        _collections.pop()


def add(loss: Tensor) -> None:
    """Add a loss to the innermost open context of `collecting`. If no context is open, ignore the loss."""
    if _collections:
        _collections[-1].append(loss)
