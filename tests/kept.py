"""Measure the memory that autograd keeps for the backward pass, for tests of the predicted activation memory."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Kept:
    """Tensor storages that are saved for the backward pass, without duplicates."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


@contextmanager
def keeping(model: nn.Module) -> Iterator[Kept]:
    """Record the storages saved for the backward pass in this context, except the model's parameters and buffers."""
    own = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
    kept = Kept()

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept.storages.setdefault(storage.data_ptr(), storage)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield kept
