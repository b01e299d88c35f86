"""Several processes for one run: rank 0 is the run's child itself, which starts the others and ends with them.

A rank is the same program on the same spec (`python -m experiments.child.run SPEC RANK PORT`): whatever is sent between
them is counts, gradients and decisions (group.py), never code. They meet on this machine.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

from torch import distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from experiments.config import DeviceSpec
from experiments.events.event_log import read_events
from experiments.training.parallel.group import Group

HERE = "127.0.0.1"
PATIENCE = timedelta(minutes=30)  # for another rank: rank 0 evaluates and resumes alone meanwhile
END_S = 30.0  # for the others to end after the last step
OWN_WORD_S = 5.0  # for rank 0 to fail by itself when another has


@contextlib.contextmanager
def joined(device: DeviceSpec, rank: int, port: int, folder: Path, emit: Callable[..., None]) -> Iterator[Group]:
    """The group of `device.count` processes that train in `folder`, an attempt's; of one, where it is one.

    Rank 0 starts the others. If one of them fails, it tells that failure as its own and ends; if one is killed, it
    ends in the same way.
    """
    if device.count == 1:
        yield Group()
        return
    store = TCPStore(HERE, port, device.count, is_master=rank == 0, timeout=PATIENCE, wait_for_workers=False)
    others = Others(folder, device.count, store.port, emit) if rank == 0 else None
    try:
        backend = "nccl" if device.kind == "cuda" else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=device.count, timeout=PATIENCE)
        yield Group(rank, device.count, dist.new_group(backend="gloo", timeout=PATIENCE))
        dist.destroy_process_group()
    except BaseException as error:
        if others is None:
            raise
        if isinstance(error, RuntimeError):  # a call that another rank did not answer
            others.blame()
        others.kill()  # they may be waiting for this one
        raise
    if others:
        others.wait()


class Others:
    """Ranks 1, 2 …: processes of rank 0's own process group, so that whoever kills the child kills them too."""

    def __init__(self, folder: Path, size: int, port: int, emit: Callable[..., None]) -> None:
        self._folder, self._emit = folder, emit
        self._ended = threading.Event()
        self._processes = {rank: self._start(rank, port) for rank in range(1, size)}
        for rank, process in self._processes.items():
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _start(self, rank: int, port: int) -> "subprocess.Popen[bytes]":
        place = self.place(self._folder, rank)
        place.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "experiments.child.run", str(self._folder / "spec.json"), str(rank), str(port)]
        with (place / "log.txt").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    @staticmethod
    def place(folder: Path, rank: int) -> Path:
        """Where a rank keeps its log and tells its failure."""
        return folder / "ranks" / str(rank)

    def wait(self) -> None:
        """The training is done: let them end."""
        self._ended.set()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        self.kill()

    def kill(self) -> None:
        self._ended.set()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        """A rank that is gone leaves rank 0 waiting for it, inside a call that nothing interrupts."""
        process.wait()
        if not self._ended.wait(OWN_WORD_S):
            self._blame(rank, process)

    def blame(self) -> None:
        """If another rank has failed, tell that instead of its echo here, and end. Returns if none has."""
        until = time.monotonic() + OWN_WORD_S / 2
        while time.monotonic() < until and all(process.poll() is None for process in self._processes.values()):
            time.sleep(0.05)
        for rank, process in self._processes.items():
            if process.poll() is not None:
                self._blame(rank, process)

    def _blame(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        told = {event["kind"]: event for event in read_events(self.place(self._folder, rank))}
        if "finished" in told or "preempted" in told:
            return  # rank 0 may still be saving what they have agreed to save
        self.kill()
        if "failed" not in told:  # killed: so is the run, which goes on at its checkpoint
            os.kill(os.getpid(), signal.SIGKILL)
        said = {name: told["failed"][name] for name in ("cls", "message", "traceback")}
        self._emit("failed", **{**said, "message": f"Rank {rank}: {said['message']}"})
        os._exit(1)
