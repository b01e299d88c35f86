"""Ranks: several processes, with a device each, that compute one training together.

Each rank computes its share of a step's pairs; torch's DDP sums gradients during the backward pass. Counts and
decisions are exchanged between processors, so that no process waits for a GPU.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted


@dataclass(frozen=True)
class Group:
    """This process's place among `size`. Rank 0 decides, emits events and saves; a single process is rank 0 of 1."""

    rank: int = 0
    size: int = 1
    control: Any = None  # gloo's group, for counts and decisions

    @property
    def leads(self) -> bool:
        """Return whether this process is rank 0."""
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
        return [int(value) for value in self.add_up(torch.tensor(counts, dtype=torch.int64)).tolist()]

    def add_up(self, sums: Tensor) -> Tensor:
        """Sums over the ranks, as a tensor on the processor."""
        sums = sums.cpu()
        if self.size > 1:
            dist.all_reduce(sums, group=self.control)
        return sums

    def decided(self, *flags: bool) -> list[bool]:
        """Rank 0's values of the flags."""
        return [bool(flag) for flag in self.of_rank_0(*flags)]

    def of_rank_0(self, *values: float) -> list[float]:
        """Rank 0's values."""
        said = torch.tensor(values, dtype=torch.float64)
        if self.size > 1:
            dist.broadcast(said, 0, group=self.control)
        return [float(value) for value in said.tolist()]


# --- Start the ranks of a run: rank 0 is the run's child, which starts the others and ends with them
# Ranks exchange counts, gradients and decisions, never code. All run on one machine.


HERE = "127.0.0.1"
PATIENCE = timedelta(minutes=30)  # time to wait for another rank: rank 0 evaluates and resumes alone meanwhile


class OtherRanks(Protocol):
    """Ranks 1, 2, …, as their starter has them (experiments/child/run.py)."""

    def wait(self) -> None:
        """Wait until they have ended after the training."""

    def kill(self) -> None:
        """End them at once."""

    def blame(self) -> None:
        """If one of them failed, report its failure and end; otherwise return."""


@contextlib.contextmanager
def joined(device: DeviceSpec, rank: int, port: int, start: Callable[[int], OtherRanks] | None) -> Iterator[Group]:
    """The group of `device.count` processes that train together; a group of one for one device.

    Rank 0 starts the others with the port that it opened. If one of them fails, rank 0 reports that failure as its own
    and ends; if one is killed, rank 0 ends in the same way.
    """
    if device.count == 1:
        yield Group()
        return
    store = TCPStore(HERE, port, device.count, is_master=rank == 0, timeout=PATIENCE, wait_for_workers=False)
    others = start(store.port) if start is not None else None
    backend = "nccl" if device.kind == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, store=store, rank=rank, world_size=device.count, timeout=PATIENCE)
        yield Group(rank, device.count, dist.new_group(backend="gloo", timeout=PATIENCE))
        dist.destroy_process_group()
    except BaseException as error:
        if backend == "nccl" and dist.group.WORLD is not None and not isinstance(error, Preempted):
            with contextlib.suppress(RuntimeError):  # the driver may be gone
                dist.group.WORLD.abort()  # its kernels, which wait for a rank that failed, would keep this process
        if others is None:
            raise
        if isinstance(error, RuntimeError):  # another rank did not answer
            others.blame()
        others.kill()  # they may be waiting for this one
        raise
    if others:
        others.wait()
