"""Several workers for one step of a training: ranks, processes with a device each, and replicas, threads of a process.

Ranks: every one computes its share of a step's pairs; torch's DDP sums gradients during the backward pass. Counts and
decisions are exchanged between processors, so that no process waits for a GPU.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.parallel import DistributedDataParallel

from experiments.config import DeviceSpec, TrainingConfig
from experiments.device import Device, mix
from experiments.errors import Preempted
from model.parts.dropout import draw_from


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


# --- Two replicas: threads that compute a step's micro-batches in parallel, on half of the cores each
# A small model's operations are too short to be divided among cores. On two cores, a step of multi30k's model (2.4 M
# parameters, 4,096 tokens) takes 323 ms, in two replicas 267 ms; base (63 M; large products) 1.29 s and 1.48 s in bf16.


REPLICAS = 2
LARGEST = 2**24  # parameters; each replica holds a gradient per parameter


def replicas_for(model: nn.Module, settings: TrainingConfig, device: Device, group: Group) -> int:
    """Number of replicas of a training; 1 means no replicas."""
    small = sum(p.numel() for p in model.parameters()) <= LARGEST
    alone = not device.is_cuda and group.size == 1 and not settings.compile and not settings.gleu_samples
    return REPLICAS if small and alone and device.threads >= REPLICAS else 1


class Replicas:
    """Replica r takes micro-batches r, r + replicas, …, so sums of gradients do not depend on which ends first."""

    def __init__(self, model: nn.Module, count: int, threads: int) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._generators = [torch.Generator() for _ in range(count)]
        self._pool = ThreadPoolExecutor(count, "replica", initializer=_begin, initargs=(max(1, threads // count),))

    def seed(self, value: int) -> None:
        """Seed the dropout generator of each replica."""
        for replica, generator in enumerate(self._generators):
            generator.manual_seed(mix(value, replica))

    def backward(self, loss_of: Callable[[Any], tuple[Tensor, Tensor]], batches: Sequence[Any]) -> list[Tensor]:
        """Set the parameters' gradients to those of the sum of all micro-batches' losses.

        `loss_of(batch)` returns (loss, facts); returns the facts in the order of the batches. An error is raised once
        no replica is working any more.
        """
        count = len(self._generators)
        running = [
            self._pool.submit(self._replica, replica, loss_of, batches[replica::count])
            for replica in range(min(count, len(batches)))
        ]
        wait(running)
        done = [replica.result() for replica in running]
        for number, parameter in enumerate(self._parameters):
            shares = [gradients[number] for gradients, _ in done if gradients[number] is not None]
            for other in shares[1:]:
                shares[0] += other
            parameter.grad = shares[0] if shares else None
        return [done[number % count][1][number // count] for number in range(len(batches))]

    def _replica(
        self, replica: int, loss_of: Callable[[Any], tuple[Tensor, Tensor]], batches: Sequence[Any]
    ) -> tuple[list[Any], list[Tensor]]:
        draw_from(self._generators[replica])
        sums: list[Any] = [None] * len(self._parameters)
        facts = []
        for batch in batches:
            loss, told = loss_of(batch)
            facts.append(told)
            gradients: Sequence[Tensor | None] = torch.autograd.grad(loss, self._parameters, allow_unused=True)
            for number, (parameter, gradient) in enumerate(zip(self._parameters, gradients, strict=True)):
                if gradient is None:
                    continue
                if sums[number] is not None:
                    sums[number] += gradient
                elif gradient.stride() == parameter.stride():
                    sums[number] = gradient
                else:  # the fused optimizer needs both in the same memory order
                    sums[number] = torch.empty_like(parameter).copy_(gradient)
        return sums, facts

    def close(self) -> None:
        """End the replicas' threads."""
        self._pool.shutdown()


def _begin(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)


# --- Start the ranks of a run: rank 0 is the run's child, which starts the others and ends with them
# Ranks exchange counts, gradients and decisions, never code. All run on one machine.


HERE = "127.0.0.1"
PATIENCE = timedelta(minutes=30)  # time to wait for another rank: rank 0 evaluates and resumes alone meanwhile


class Others(Protocol):
    """Ranks 1, 2, …, as their starter has them (experiments/child/run.py)."""

    def wait(self) -> None:
        """Wait until they have ended after the training."""

    def kill(self) -> None:
        """End them at once."""

    def blame(self) -> None:
        """If one of them failed, report its failure and end; otherwise return."""


@contextlib.contextmanager
def joined(device: DeviceSpec, rank: int, port: int, start: Callable[[int], Others] | None) -> Iterator[Group]:
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
