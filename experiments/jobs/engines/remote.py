"""The child's keeper on a cluster's node: starts it, passes requests on to it, and records its end.

A cluster starts the keeper with the attempt's folder, where an engine has written `launch.json`. The child runs in its
own session and dies with its keeper. Its exit code is written to `exit.json` in the same folder; a coordinator needs
nothing else, on any machine, at any later time. Lines of --setup are run before the child; if one fails, the attempt
fails with its output.
"""

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

from experiments.events.event_log import EventWriter
from experiments.jobs.engines.base import Exit
from experiments.jobs.engines.setup_lines import Changes, SetupError, node_name, setup_changes, with_changes
from experiments.records import ChildExit, FailureClass
from experiments.store.sealed import read_json, write_json

LAUNCH, EXIT = "launch.json", "exit.json"
# Variables that the cluster sets for a job (devices, job ids); they are kept unless the launch overrides them.
GIVEN = ("CUDA_VISIBLE_DEVICES", "SLURM", "RAY_JOB_ID", "TMPDIR", "HOSTNAME")
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCONT)  # requests to end, from users or time limits
_PR_SET_PDEATHSIG = 1


class Keeper:
    """Keeps one child. Construct it in a thread that lives as long as the child. `changes`: to its environment."""

    def __init__(self, folder: Path, changes: Changes | None = None) -> None:
        launch = read_json(folder / LAUNCH) or {}
        self._folder = folder
        self._asked = threading.Event()
        self._child: subprocess.Popen[bytes] | None = None
        given = with_changes(environment(launch["environment"], os.environ), changes or {})
        with Path(launch["log"]).open("ab") as output:
            try:
                more, said = setup_changes(launch["setup"], given)
            except SetupError as failure:
                (folder / LAUNCH).unlink()
                self._fail(f"{failure}\nCorrect the line; `ablations retry` queues the run again.")
                return
            output.write(said.encode())
            output.flush()
            self._child = subprocess.Popen(
                launch["argv"],
                env=with_changes(given, more),
                cwd=launch["cwd"] if Path(launch["cwd"]).is_dir() else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_prepare,
            )
        (folder / LAUNCH).unlink()  # no longer needed, and its environment may contain secrets

    def wait(self) -> int:
        """Wait for the child's end, record its exit code on disk, and return it."""
        code = self._child.wait() if self._child is not None else int(ChildExit.FAILED)
        record_exit(self._folder, code)
        return code

    @property
    def living(self) -> bool:
        """Whether the child lives; `wait` returns at once if not."""
        return self._child is not None and self._child.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM once: a second one would mean "at once", and clusters repeat their signals."""
        if not self._asked.is_set() and self._child is not None and self._child.poll() is None:
            self._asked.set()
            self._child.terminate()

    def kill(self) -> None:
        """End the child and its process group at once."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def _fail(self, message: str) -> None:
        events = EventWriter(self._folder)
        events.emit("failed", cls=FailureClass.USER_ERROR, message=message, traceback="")
        events.close()


def run_child(folder: str) -> int:
    """Keep one child in the main thread of a process; signals to this process are requests to end."""
    keeper = Keeper(Path(folder))

    def ask(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCONT:  # clusters send it together with the others
            keeper.terminate()

    for number in REQUESTS:
        signal.signal(number, ask)
    return keeper.wait()


def environment(wanted: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The launch's environment, plus the node's own variables that belong to the job."""
    return {name: value for name, value in given.items() if name.startswith(GIVEN)} | dict(wanted)


def record_exit(folder: Path, code: int | None, withdrawn: str = "") -> None:
    """Record how an attempt ended, for coordinators on any machine (see Exit)."""
    write_json(folder / EXIT, {"code": code, "withdrawn": withdrawn, "host": node_name()})


def recorded_exit(folder: Path) -> Exit | None:
    """The end that a keeper has recorded; None if there is none yet."""
    try:
        record = json.loads((folder / EXIT).read_text(encoding="utf-8"))
        withdrawn = str(record.get("withdrawn", ""))
        return Exit(None, withdrawn) if withdrawn else Exit(int(record["code"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _prepare() -> None:
    """Runs in the child before its program: let it die with the keeper, and ignore a cluster's notices.

    Slurm sends notices to every process of a job, which would end most programs.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
