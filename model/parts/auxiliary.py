"""Losses that sub-layers add to the training loss. Each thread collects its own, as lanes share a network."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_thread = threading.local()


@contextmanager
def collecting() -> Iterator[list[Tensor]]:
    """What `add` is given by this thread in this context: numbers with gradients, in units of the loss of a token."""
    found: list[Tensor] = []
    _thread.losses = found
    try:
        yield found
    finally:
        del _thread.losses


def add(loss: Tensor) -> None:
    """Add to what is collected; without anyone who collects, it is lost."""
    if (losses := getattr(_thread, "losses", None)) is not None:
        losses.append(loss)
