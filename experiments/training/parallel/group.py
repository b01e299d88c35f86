"""The processes that train one run together, each on a device of its own (data parallel).

Every rank computes its share of a step's pairs; gradients are summed by torch's DDP while the backward pass still
runs. Counts and decisions travel apart, between processors, so that no GPU is waited for.
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Group:
    """This process's place among `size`. Rank 0 decides, tells events and saves; alone, a process is rank 0 of 1."""

    rank: int = 0
    size: int = 1
    control: Any = None  # gloo's group, for counts and decisions

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The objective whose gradients are the mean of all ranks'."""
        if self.size == 1:
            return objective
        return DistributedDataParallel(objective, gradient_as_bucket_view=True, broadcast_buffers=False)

    def gathering(self, objective: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Around a micro-batch: gradients are exchanged in the last one of a step only."""
        if last or not isinstance(objective, DistributedDataParallel):
            return contextlib.nullcontext()
        return objective.no_sync()

    def total(self, counts: Sequence[int]) -> list[int]:
        """Sums over the ranks."""
        if self.size == 1:
            return list(counts)
        sums = torch.tensor(counts, dtype=torch.int64)
        dist.all_reduce(sums, group=self.control)
        return [int(value) for value in sums.tolist()]

    def add_up(self, sums: Tensor) -> Tensor:
        """Sums over the ranks, on the processor."""
        sums = sums.cpu()
        if self.size > 1:
            dist.all_reduce(sums, group=self.control)
        return sums

    def decided(self, *flags: bool) -> list[bool]:
        """What rank 0 says."""
        if self.size == 1:
            return list(flags)
        said = torch.tensor(flags, dtype=torch.uint8)
        dist.broadcast(said, 0, group=self.control)
        return [bool(flag) for flag in said.tolist()]
