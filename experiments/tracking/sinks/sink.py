"""Start and call sinks. A sink is added by an extra, and sends runs to another tracking program.

A sink reads only the events and results of a run, like the program's writer for MLflow. Each sink has a separate
process (serve.py), and the coordinator's background thread sends runs to this process. If the sink's package fails,
hangs or fills the disk, an error is logged, and no run waits. `ablations ui --rebuild` then writes the runs that the
sink lacks.
"""

import atexit
import importlib.util
import json
import logging
import os
import select
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from experiments.errors import UserError
from experiments.jobs.engines.engine import import_path
from experiments.store.layout import Store
from experiments.store.tracked_run import TrackedRun
from model.extensions import added, load

SERVE = ["-P", "-m", "experiments.tracking.sinks.serve"]
MOST_STARTS = 3  # maximum number of times that the process is started
PATIENCE_S = 120.0  # seconds to wait for one run; the first run includes the import of the package
log = logging.getLogger(__name__)


def folder_of(store: Store, sink: str) -> Path:
    """Return the folder of a sink's files."""
    return store.root / "sinks" / sink


def check_sink(name: str, place: str = "--sink") -> None:
    """Raise UserError if a sink is unknown or its package is not installed.

    The attribute `package` of a sink's class names the required package. place: the option or setting that names the
    sink, for the message.
    """
    known = added("sinks")
    if name not in known:
        raise UserError(f"{place} {name}: unknown sink. The sinks are: {', '.join(known) or 'none'}.")
    package = getattr(load(known[name]), "package", "")
    if package and importlib.util.find_spec(package) is None:
        raise UserError(f"{place} {name} needs the package {package}. Install it: pip install {package}")


class SinkError(UserError):
    """Raised if a sink did not write a run."""


class SinkProcess:
    """The process of a sink. `sync` waits for its answer for at most `patience_s` seconds."""

    def __init__(self, store: Store, sink: str, patience_s: float = PATIENCE_S) -> None:
        self._store, self._sink, self._patience_s, self._starts = store, sink, patience_s, 0
        self._start()

    def _start(self) -> None:
        self._starts += 1
        store, sink = self._store, self._sink
        folder = folder_of(store, sink)
        folder.mkdir(parents=True, exist_ok=True)
        state = [str(store.state_dir)] if store.state_dir != store.root else []
        self._process = subprocess.Popen(
            [sys.executable, *SERVE, sink, str(store.root), *state],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / "log.txt").open("ab"),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(import_path())},
            start_new_session=True,  # Ctrl-C then reaches only the coordinator
        )
        atexit.register(self._process.kill)  # normally, the process ends when its input is closed

    def sync(self, run: TrackedRun) -> None:
        """Send a run to the sink, which writes whatever it does not have yet. Raises SinkError if that fails."""
        if self._process.poll() is not None and self._starts < MOST_STARTS:
            self._start()
        answer = self._ask(json.dumps(asdict(run), default=str).encode() + b"\n")
        if answer.get("error"):
            raise SinkError(answer["error"])

    def _ask(self, line: bytes) -> Mapping[str, str]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        try:
            stdin.write(line)
            stdin.flush()
            ready, _, _ = select.select([stdout], [], [], self._patience_s)
            answer = stdout.readline() if ready else b""
        except OSError as error:
            raise SinkError(f"the process of {self._sink} has ended: {error}") from None
        if not answer:
            self.close()
            how = "has ended" if ready else f"did not answer within {self._patience_s:g} s and was ended"
            raise SinkError(f"the process of {self._sink} {how}; its messages: log.txt in the sink's folder")
        found: Mapping[str, str] = json.loads(answer)
        return found

    def close(self) -> None:
        """Close the input of the process, wait up to 10 s for its end, and then kill it."""
        if self._process.stdin is not None:
            try:
                self._process.stdin.close()
                self._process.wait(10)
            except (OSError, subprocess.TimeoutExpired):
                pass
        self._process.kill()
        self._process.wait()
