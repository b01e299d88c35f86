"""The processes that train one run together, each on its own device (data parallel).

Every rank computes its share of a step's pairs; torch's DDP sums gradients during the backward pass. Counts and
decisions are exchanged between processors, so that no process waits for a GPU.
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
    """This process's place among `size`. Rank 0 decides, emits events and saves; a single process is rank 0 of 1."""

    rank: int = 0
    size: int = 1
    control: Any = None  # gloo's group, for counts and decisions

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0."""
        return self.rank == 0

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The objective with gradients averaged over all ranks."""
        if self.size == 1:
            return objective
        return DistributedDataParallel(objective, gradient_as_bucket_view=True, broadcast_buffers=False)

    def gathering(self, objective: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """A context for one micro-batch: gradients are exchanged only in the last one of a step."""
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
        """Sums over the ranks, as a tensor on the processor."""
        sums = sums.cpu()
        if self.size > 1:
            dist.all_reduce(sums, group=self.control)
        return sums

    def decided(self, *flags: bool) -> list[bool]:
        """Rank 0's values of the flags."""
        if self.size == 1:
            return list(flags)
        said = torch.tensor(flags, dtype=torch.uint8)
        dist.broadcast(said, 0, group=self.control)
        return [bool(flag) for flag in said.tolist()]

    def of_rank_0(self, value: float) -> float:
        """Rank 0's value."""
        if self.size == 1:
            return value
        said = torch.tensor(value, dtype=torch.float64)
        dist.broadcast(said, 0, group=self.control)
        return float(said)
