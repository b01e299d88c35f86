"""What autograd keeps of a forward pass, the measure of predicted activations."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


class Kept:
    """Storages that are saved for the backward pass, each once."""

    def __init__(self) -> None:
        self.storages: dict[int, torch.UntypedStorage] = {}

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())


@contextmanager
def keeping(model: nn.Module) -> Iterator[Kept]:
    """What is saved in this context, besides the model's own parameters and buffers."""
    own = {x.untyped_storage().data_ptr() for x in (*model.parameters(), *model.buffers())}
    kept = Kept()

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept.storages.setdefault(storage.data_ptr(), storage)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        yield kept
