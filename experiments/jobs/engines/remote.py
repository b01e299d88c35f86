"""The child's keeper on a cluster's node: starts it, hands requests on to it, and leaves word of its end.

A cluster starts this with the attempt's folder, in which an engine has left `launch.json`. The child runs in a session
of its own; it dies with its keeper. Its exit code is written to `exit.json` beside, which is all that a coordinator
needs, on whatever machine and however much later it looks.
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

from experiments.store.sealed import read_json, write_json

LAUNCH, EXIT = "launch.json", "exit.json"
# The cluster's, where the launch does not say otherwise: which devices were given to this job, and how it is known.
GIVEN = ("CUDA_VISIBLE_DEVICES", "SLURM", "RAY_JOB_ID", "TMPDIR", "HOSTNAME")
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCONT)  # to end: of people, of time limits
_PR_SET_PDEATHSIG = 1


class Keeper:
    """One child. Made in a thread that lives as long as the child may."""

    def __init__(self, folder: Path) -> None:
        launch = read_json(folder / LAUNCH) or {}
        self._folder = folder
        self._asked = threading.Event()
        with Path(launch["log"]).open("ab") as output:
            self._child = subprocess.Popen(
                launch["argv"],
                env=environment(launch["environment"], os.environ),
                cwd=launch["cwd"] if Path(launch["cwd"]).is_dir() else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_prepare,
            )
        (folder / LAUNCH).unlink()  # it has served, and an environment may hold secrets: a store may be given away

    def wait(self) -> int:
        """Until the child has ended; its code, which is then on the disk."""
        code = self._child.wait()
        write_json(self._folder / EXIT, {"code": code, "host": os.uname().nodename})
        return code

    def terminate(self) -> None:
        """Once: a second request would mean "at once", and clusters repeat themselves."""
        if not self._asked.is_set() and self._child.poll() is None:
            self._asked.set()
            self._child.terminate()

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


def run_child(folder: str) -> int:
    """Keep one child from the main thread of a process, whose signals are requests to end."""
    keeper = Keeper(Path(folder))

    def ask(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCONT:  # which clusters send along with the others
            keeper.terminate()

    for number in REQUESTS:
        signal.signal(number, ask)
    return keeper.wait()


def environment(wanted: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """What the launch wants, and of the node's own what belongs to the job there."""
    return {name: value for name, value in given.items() if name.startswith(GIVEN)} | dict(wanted)


def exit_code(folder: Path) -> int | None:
    """The code that a keeper has left; None while there is none."""
    try:
        return int(json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _prepare() -> None:
    """In the child, before its program: it dies with the keeper, and leaves a cluster's notices to it.

    Slurm sends a notice to every process of a job, and most programs would die of it.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
