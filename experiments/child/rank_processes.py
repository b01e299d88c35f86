"""Ranks 1, 2, … of a run that trains on several devices. Each rank is a process of this program with the same spec."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from experiments.events.event_log import read_events

log = logging.getLogger(__name__)

END_S = 30.0  # time limit, in seconds, for the other ranks to end after the last step
RANK0_REPORT_GRACE_S = 5.0  # time limit, in seconds, for rank 0 to end by itself after another rank has ended


class RankProcesses:
    """The processes of ranks 1, 2, …. They are in rank 0's process group, so that killing the group kills them too."""

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
        """Return the folder of a rank's log and events."""
        return folder / "ranks" / str(rank)

    def wait(self) -> None:
        """Wait up to END_S for each of the other ranks to end after the training. Then kill the remaining ranks."""
        self._ended.set()
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
        self.kill()

    def kill(self) -> None:
        """Kill the other ranks and wait until they have ended."""
        self._ended.set()
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _watch(self, rank: int, process: "subprocess.Popen[bytes]") -> None:
        """Wait until a rank ends. If rank 0 is still training after the grace period, call `_blame`.

        Without this thread, rank 0 could wait forever for the ended rank in a collective operation.
        """
        process.wait()
        if not self._ended.wait(RANK0_REPORT_GRACE_S):
            self._blame(rank)

    def blame(self) -> None:
        """End this process (rank 0) if another rank has failed or was killed; otherwise return.

        Rank 0 calls this method after an error, because the failure of another rank may have caused the error.
        """
        until = time.monotonic() + RANK0_REPORT_GRACE_S / 2
        while time.monotonic() < until and all(process.poll() is None for process in self._processes.values()):
            time.sleep(0.05)
        for rank, process in self._processes.items():
            if process.poll() is not None:
                self._blame(rank)

    def _blame(self, rank: int) -> None:
        """End all ranks if `rank` has failed or was killed. Return if it has finished or was preempted.

        A failure is reported before rank 0 exits. If `rank` was killed, rank 0 kills itself without a report.
        """
        events = {event["kind"]: event for event in read_events(self.place(self._folder, rank))}
        if "finished" in events or "preempted" in events:
            return  # rank 0 may still be saving the checkpoint at which all ranks stop
        self.kill()
        if "failed" not in events:  # the rank was killed; kill rank 0 too, so that the coordinator resumes the run
            os.kill(os.getpid(), signal.SIGKILL)
        failure = {name: events["failed"][name] for name in ("cls", "message", "traceback")}
        self._emit("failed", **{**failure, "message": f"Rank {rank}: {failure['message']}"})
        os._exit(1)
