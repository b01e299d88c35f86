"""Train on several devices: one process (rank) per device.

Each rank computes its share of the pairs in a step, and torch's DDP averages gradients during the backward pass. Counts
and decisions are exchanged on the CPU, so that no process waits for a GPU.
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
    """The rank of this process in a group of `size` processes. A single process is rank 0 in a group of 1.

    Rank 0 decides when to stop, emits the events and saves the checkpoints.
    """

    rank: int = 0
    size: int = 1
    control: Any = None  # gloo process group, for counts and decisions

    @property
    def leads(self) -> bool:
        """Return whether this process is rank 0."""
        return self.rank == 0

    def wrap(self, objective: nn.Module) -> nn.Module:
        """Wrap the objective so that gradients are averaged over all ranks."""
        if self.size == 1:
            return objective
        return DistributedDataParallel(objective, gradient_as_bucket_view=True, broadcast_buffers=False)

    def gathering(self, objective: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[None]:
        """Return a context for one micro-batch. Ranks exchange gradients only in the last micro-batch of a step."""
        if last or not isinstance(objective, DistributedDataParallel):
            return contextlib.nullcontext()
        return objective.no_sync()

    def total(self, counts: Sequence[int]) -> list[int]:
        """Return the sums of the counts over all ranks."""
        return [int(value) for value in self.add_up(torch.tensor(counts, dtype=torch.int64)).tolist()]

    def add_up(self, sums: Tensor) -> Tensor:
        """Return the sums of a tensor over all ranks, on the CPU."""
        sums = sums.cpu()
        if self.size > 1:
            dist.all_reduce(sums, group=self.control)
        return sums

    def decided(self, *flags: bool) -> list[bool]:
        """Return the values that the flags have on rank 0. All ranks must call this method."""
        return [bool(flag) for flag in self.of_rank_0(*flags)]

    def of_rank_0(self, *values: float) -> list[float]:
        """Return the values that rank 0 passes to this method. All ranks must call it."""
        sent = torch.tensor(values, dtype=torch.float64)
        if self.size > 1:
            dist.broadcast(sent, 0, group=self.control)
        return [float(value) for value in sent.tolist()]


# Rank 0 is the child process of the run. It starts the other ranks and ends with them. All ranks run on one machine.
# They exchange counts, gradients and decisions, but never code.


HERE = "127.0.0.1"
PATIENCE = timedelta(minutes=30)  # longest wait for another rank; the others wait while rank 0 evaluates alone


class OtherRanks(Protocol):
    """The interface to the processes of ranks 1, 2, … (experiments/child/run.py)."""

    def wait(self) -> None:
        """Wait until the processes have ended after the training."""

    def kill(self) -> None:
        """Kill the processes."""

    def blame(self) -> None:
        """If one of the processes failed, report its failure and end this process; otherwise return."""


@contextlib.contextmanager
def joined(device: DeviceSpec, rank: int, port: int, start: Callable[[int], OtherRanks] | None) -> Iterator[Group]:
    """Return a context with the group of `device.count` processes that train together.

    Rank 0 opens a port and passes it to `start`, which starts the other ranks. If another rank fails, rank 0 reports
    this failure and ends. If another rank is killed, rank 0 kills itself.
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
                dist.group.WORLD.abort()  # otherwise, kernels that wait for a failed rank keep this process alive
        if others is None:
            raise
        if isinstance(error, RuntimeError):  # another rank may have failed
            others.blame()
        others.kill()  # the other ranks may be waiting for this process
        raise
    if others:
        others.wait()
