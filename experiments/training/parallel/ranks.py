"""Several processes for one run: rank 0 is the run's child, which starts the others and ends with them.

Ranks exchange counts, gradients and decisions (group.py), never code. All run on one machine.
"""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Protocol

from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from experiments.config import DeviceSpec
from experiments.training.parallel.group import Group

HERE = "127.0.0.1"
PATIENCE = timedelta(minutes=30)  # time to wait for another rank: rank 0 evaluates and resumes alone meanwhile


class Others(Protocol):
    """Ranks 1, 2, …, as their starter has them (experiments/child/ranks.py)."""

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
    try:
        backend = "nccl" if device.kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=device.count, timeout=PATIENCE)
        yield Group(rank, device.count, dist.new_group(backend="gloo", timeout=PATIENCE))
        dist.destroy_process_group()
    except BaseException as error:
        if others is None:
            raise
        if isinstance(error, RuntimeError):  # another rank did not answer
            others.blame()
        others.kill()  # they may be waiting for this one
        raise
    if others:
        others.wait()
