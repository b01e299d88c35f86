"""The keeper of a child on a cluster's node: it starts the child, passes requests on to it, and records its end.

An engine writes `launch.json` to the attempt's folder. Then the cluster starts the keeper with this folder. The child
runs in a new session, and the kernel kills it if its keeper dies. The keeper writes the child's exit code to
`exit.json` in the same folder. A coordinator on any machine can read this file, even if it starts after the child has
ended. Lines of --setup (`module load …`, `conda activate …`) run before the child in one bash process, which then
becomes the child. If a line fails, the attempt fails with the output of the line.
"""

import contextlib
import ctypes
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from experiments.errors import UserError
from experiments.events.event_log import EventWriter
from experiments.jobs.engines.engine import Exit
from experiments.processes.marked import MARK, end_marked
from experiments.records import FailureClass
from experiments.store.checksummed import read_json, write_json

LAUNCH, EXIT = "launch.json", "exit.json"
# Variables that the cluster sets for a job (devices, job ids). Values in launch.json override the cluster's values.
GIVEN = ("CUDA_VISIBLE_DEVICES", "RAY_JOB_ID", "TMPDIR", "HOSTNAME")
# Prefixes of variables that only the cluster sets. Values in launch.json never override them: if the coordinator itself
# runs in a job of the cluster, launch.json contains the values of that job.
NODES = ("SLURM", "CUDA_MPS")
# Variables that --devices determines. Lines of --setup cannot change them for the child.
_DECIDED = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
SETUP_FAILED = 111  # exit code after a line of --setup failed
OUTPUT = 2000  # number of bytes at the end of the log that the message about a failed line contains
REQUESTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGCONT)  # clusters send these to end a job
_PR_SET_PDEATHSIG = 1


class Keeper:
    """Starts and watches one child.

    Construct the keeper in a thread that lives as long as the child, because the kernel kills the child when this
    thread ends.

    changes: variables that are set or changed in the child's environment.
    """

    def __init__(self, folder: Path, changes: Mapping[str, str] | None = None) -> None:
        launch = read_json(folder / LAUNCH) or {}
        self._folder, self._log = folder, Path(launch["log"])
        self._asked = threading.Event()
        given = {**environment(launch["environment"], os.environ), **(changes or {})}
        self._mark = given.get(MARK, "")
        with self._log.open("ab") as output:
            self._child = subprocess.Popen(
                after_setup(launch["setup"], launch["argv"], given),
                env=given,
                cwd=launch["cwd"] if Path(launch["cwd"]).is_dir() else None,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_prepare,
            )
        (folder / LAUNCH).unlink()  # the file is no longer needed, and its environment may contain secrets

    def wait(self) -> int:
        """Wait for the end of the child, record its exit code on the disk, and return it."""
        code = self._child.wait()
        if self._mark:
            end_marked(Path(self._mark))
        if code == SETUP_FAILED:
            said = self._log.read_bytes()[-OUTPUT:].decode(errors="replace").strip()
            events = EventWriter(self._folder)
            message = f"{said}\nCorrect the line; `ablations retry` queues the run again."
            events.emit("failed", cls=FailureClass.USER_ERROR, message=message, traceback="")
            events.close()
        record_exit(self._folder, code)
        return code

    @property
    def living(self) -> bool:
        """Whether the child lives. If it does not, `wait` returns immediately."""
        return self._child.poll() is None

    def terminate(self) -> None:
        """Send SIGTERM to the child, but only once.

        Clusters repeat their signals, and a second SIGTERM would end the child immediately.
        """
        if not self._asked.is_set() and self.living:
            self._asked.set()
            self._child.terminate()

    def kill(self) -> None:
        """Kill the child and its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


def after_setup(lines: Sequence[str], argv: Sequence[str], environment: Mapping[str, str]) -> Sequence[str]:
    """Return the command that runs the lines of --setup and then `argv`.

    If a line fails, the command prints the line and ends with the exit code SETUP_FAILED.
    """
    if not lines:
        return argv
    script = []
    for line in lines:
        said = shlex.quote(f"--setup {shlex.quote(line)} failed on the node {node_name()} (exit code")
        script += [line, f'(exit $?) || {{ __code=$?; echo {said} "$__code)."; exit {SETUP_FAILED}; }}']
    decided = [f"{name}={environment[name]}" for name in _DECIDED if name in environment]
    # `argv` is part of the script and not passed as arguments of bash, because `source` would pass the arguments on
    return ["bash", "-c", "\n".join([*script, f"exec {shlex.join(['env', *decided, *argv])}"])]


def run_child(folder: str) -> int:
    """Start one child, wait for its end, and return its exit code. Call this function in the main thread.

    Signals to this process are requests to end the child.
    """
    keeper = Keeper(Path(folder))

    def ask(number: int, _frame: FrameType | None) -> None:
        if number != signal.SIGCONT:  # clusters send SIGCONT together with other signals
            keeper.terminate()

    for number in REQUESTS:
        signal.signal(number, ask)
    return keeper.wait()


def node_name() -> str:
    """Return this node's name in its cluster."""
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def environment(wanted: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a child.

    wanted: the variables in launch.json.
    given: the variables of this process. Only those that the cluster sets are used (GIVEN and NODES).
    """
    kept = {name: value for name, value in wanted.items() if not name.startswith(NODES)}
    return {name: value for name, value in given.items() if name.startswith(GIVEN + NODES)} | kept


def record_exit(folder: Path, code: int | None, withdrawn: str = "") -> None:
    """Record how an attempt ended, for coordinators on any machine (see `Exit`)."""
    write_json(folder / EXIT, {"code": code, "withdrawn": withdrawn, "host": node_name()})


def recorded_exit(folder: Path) -> Exit | None:
    """Return the end of an attempt that a keeper has recorded; None if it is not recorded or cannot be read now."""
    with contextlib.suppress(UserError):  # the file is damaged, or the network disk does not answer
        if record := read_json(folder / EXIT):
            return Exit(record["code"], record["withdrawn"])
    return None


def _prepare() -> None:
    """Let the kernel kill this process when the keeper dies, and ignore SIGUSR1 and SIGUSR2.

    The function runs in the child before its program starts. Slurm sends these signals to every process of a job as
    notices, and they would end most programs.
    """
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
