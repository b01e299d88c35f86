"""The child's keeper on a cluster's node: starts it, passes requests on to it, and records its end.

A cluster starts the keeper with the attempt's folder, where an engine has written `launch.json`. The child runs in its
own session and dies with its keeper. Its exit code is written to `exit.json` in the same folder; a coordinator needs
nothing else, on any machine, at any later time.
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
# Variables that the cluster sets for a job (devices, job ids); they are kept unless the launch overrides them.
GIVEN = ("CUDA_VISIBLE_DEVICES", "SLURM", "RAY_JOB_ID", "TMPDIR", "HOSTNAME")
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCONT)  # requests to end, from users or time limits
_PR_SET_PDEATHSIG = 1


class Keeper:
    """Keeps one child. Construct it in a thread that lives as long as the child."""

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
        (folder / LAUNCH).unlink()  # no longer needed, and its environment may contain secrets

    def wait(self) -> int:
        """Wait for the child's end, record its exit code on disk, and return it."""
        code = self._child.wait()
        write_json(self._folder / EXIT, {"code": code, "host": os.uname().nodename})
        return code

    def terminate(self) -> None:
        """Send SIGTERM once: a second one would mean "at once", and clusters repeat their signals."""
        if not self._asked.is_set() and self._child.poll() is None:
            self._asked.set()
            self._child.terminate()

    def kill(self) -> None:
        """End the child and its process group at once."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


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


def exit_code(folder: Path) -> int | None:
    """The exit code that a keeper has recorded; None if there is none yet."""
    try:
        return int(json.loads((folder / EXIT).read_text(encoding="utf-8"))["code"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _prepare() -> None:
    """Runs in the child before its program: let it die with the keeper, and ignore a cluster's notices.

    Slurm sends notices to every process of a job, which would end most programs.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
