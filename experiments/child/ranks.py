"""The other processes of a run that trains on several devices: the same program on the same spec.

python -m experiments.child.run SPEC RANK PORT
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from experiments.events.event_log import read_events

END_S = 30.0  # time for the others to end after the last step
OWN_WORD_S = 5.0  # time for rank 0 to fail by itself after another rank failed


class Others:
    """Ranks 1, 2, …, in rank 0's process group, so that killing the child kills them too."""

    def __init__(self, folder: Path, size: int, port: int, emit: Callable[..., None]) -> None:
        self._folder, self._emit = folder, emit
        self._ended = threading.Event()
        self._processes = {rank: self._start(rank, port) for rank in range(1, size)}
        for rank, process in self._processes.items():
            threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()

    def _start(self, rank: int, port: int) -> "subprocess.Popen[bytes]":
        place = self.place(self._folder, rank)
        place.mkdir(parents=True, exist_ok=True)
        program = [sys.executable, "-P", "-m", "experiments.child.run"]
        command = [*program, str(self._folder / "spec.json"), str(rank), str(port)]
        with (place / "log.txt").open("ab") as log:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)

    @staticmethod
    def place(folder: Path, rank: int) -> Path:
        """The folder of a rank's log and events."""
        return folder / "ranks" / str(rank)

    def wait(self) -> None:
        """Wait for the others to end after the training; then kill those that have not."""
        self._ended.set()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        self.kill()

    def kill(self) -> None:
        """End the other ranks at once."""
        self._ended.set()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        """Watch a rank: when it dies, rank 0 would wait for it in a call that cannot be interrupted."""
        process.wait()
        if not self._ended.wait(OWN_WORD_S):
            self._blame(rank)

    def blame(self) -> None:
        """If another rank failed, report its failure instead of the resulting error here, and end; otherwise return."""
        until = time.monotonic() + OWN_WORD_S / 2
        while time.monotonic() < until and all(process.poll() is None for process in self._processes.values()):
            time.sleep(0.05)
        for rank, process in self._processes.items():
            if process.poll() is not None:
                self._blame(rank)

    def _blame(self, rank: int) -> None:
        told = {event["kind"]: event for event in read_events(self.place(self._folder, rank))}
        if "finished" in told or "preempted" in told:
            return  # rank 0 may still be saving the agreed checkpoint
        self.kill()
        if "failed" not in told:  # killed: end the run likewise, so that it resumes from its checkpoint
            os.kill(os.getpid(), signal.SIGKILL)
        said = {name: told["failed"][name] for name in ("cls", "message", "traceback")}
        self._emit("failed", **{**said, "message": f"Rank {rank}: {said['message']}"})
        os._exit(1)
