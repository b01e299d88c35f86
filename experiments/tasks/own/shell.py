"""Run a shell command as a trainer: fill in the settings, and find metrics in its output.

This module does not import torch.
"""

import contextlib
import math
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.attempt_context import AttemptContext
from experiments.errors import Preempted, TrainerFailed
from experiments.events.lines import LAST_STEP
from experiments.processes.keeper import KeeperProcess, kept
from experiments.processes.process_identity import descendants
from experiments.store.layout import LOG
from experiments.tasks.own.context import of_point
from experiments.tasks.own.patterns import Readings, report_progress
from experiments.tasks.own.placeholders import expanded, filled
from experiments.tasks.own.run_code import WATCH, environment
from experiments.tasks.own.trainer_output import CHUNK, Log, Metrics, OutputTail, Printed, copy, numbers

STOP_EVERY_S = 0.2  # seconds between checks for a request to stop
KILLED_IN_SHELL = (128 + signal.SIGKILL, 128 + signal.SIGTERM)  # exit codes of a shell whose command was killed
READ_S = 10.0  # maximum time for reading the rest of the output after the command has ended


@dataclass(frozen=True)
class Ended:
    """A command that ended successfully.

    metrics: the metrics that the command printed as JSON.
    stopped: whether the command was requested to stop.
    is_python: whether the command names Python, or, with `look_for_python`, whether one of its processes ran Python.
    output: the ranges of the command's output in the log (experiments/store/results.py, Output); None if standard error
        does not go to the log file.
    """

    metrics: Metrics | None
    stopped: bool
    is_python: bool = False
    output: Mapping[str, Any] | None = None


def run_command(
    command: str,
    values: Mapping[str, Any],
    cwd: Path,
    context: AttemptContext,
    readings: Readings,
    path: str = "",
    look_for_python: bool = False,
) -> Ended:
    """Fill in the placeholders of a command, run it to its end, and write its output to the log.

    All processes of the command have ended when this function returns.

    readings: the patterns that read the output.
    path: a folder to put on Python's module search path, before the user's folders.
    look_for_python: whether to find out if a process of the command runs Python.

    Raises Preempted if the command was requested to stop and its exit code is not 0. Raises TrainerFailed for any other
    exit code that is not 0. If a signal killed the command, the error names the signal, and the run is resumed.
    """
    variables = environment() | {"ABLATIONS_SEED": str(values["seed"])}
    if path:
        entries = variables.get("PYTHONPATH", "").split(os.pathsep)
        entries.insert(1 if WATCH in entries else 0, path)
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, entries))
    text, given = filled(command, values)
    if WATCH in variables.get("PYTHONPATH", ""):
        text = _keep_watcher(text)
    stopped, is_python, log, errors = threading.Event(), threading.Event(), Log(), OutputTail()
    if _PYTHON.search(command):
        is_python.set()
    look = look_for_python and not is_python.is_set()
    log.limit(context.folder / LOG)
    begin = log.size()
    printed = Printed(lambda point: _tell(point, context), readings.line)
    on_errors = Printed(lambda point: None, readings.line)

    def take_errors(data: bytes) -> None:
        errors.take(data)
        on_errors.take(data)

    with kept(
        ["/bin/sh", "-c", text], cwd=cwd, env=variables | given,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as shell:  # fmt: skip
        assert shell.process.stdout is not None and shell.process.stderr is not None
        threading.Thread(
            target=_pass_on, args=(shell, context, stopped, is_python if look else None), daemon=True
        ).start()
        copying = threading.Thread(target=copy, args=(shell.process.stderr, log, take_errors), daemon=True)
        copying.start()
        for data in _chunks(shell.process.stdout.fileno(), shell):
            log.write(data, to=1)
            printed.take(data)
        printed.take(b"", final=True)
        log.end(to=1)
        code = shell.process.wait()
        copying.join(READ_S)
        on_errors.take(b"", final=True)
    if code != 0 and stopped.is_set():
        raise Preempted(None)
    if code != 0:
        number = -code if code < 0 else code - 128 if code in KILLED_IN_SHELL else 0
        how = f"signal {number}" if number else f"exit code {code}"
        message = f"the command ended with {how}: {expanded(command, values)}"
        raise TrainerFailed(message, errors.traceback(), signal=number)
    output = None if begin is None else log.ranges(begin)
    return Ended(printed.metrics, stopped.is_set(), is_python.is_set(), output)


_PYTHON = re.compile(r"(?:^|[\s/'\"=;&|(])(?:i?python|pypy|torchrun|accelerate|deepspeed)[\d.]*(?=$|[\s'\";&|)])")
_SAFE = re.compile(r"[\w/.+@-]+")
_SETS_PATH = re.compile(r"""\bPYTHONPATH=(?!\s|$|[;&|)]|""|'')""")


def _keep_watcher(command: str) -> str:
    """Insert the folder of the watcher at the beginning of each PYTHONPATH that the command sets.

    The command is changed only if all characters of the folder's path have the same meaning inside and outside of
    quotes.
    """
    if not _SAFE.fullmatch(WATCH):
        return command
    return _SETS_PATH.sub(f"PYTHONPATH={WATCH}{os.pathsep}", command)


def _chunks(source: int, shell: KeeperProcess) -> Iterator[bytes]:
    """Yield the output of a command in chunks until it ends.

    Reading stops READ_S after the end of the keeper process, because a process that has killed the keeper may keep the
    pipe open.
    """
    until = math.inf
    while time.monotonic() < until:
        readable = bool(select.select([source], [], [], STOP_EVERY_S)[0])
        if shell.process.poll() is not None:
            until = min(until, time.monotonic() + READ_S)
            if not readable:
                return
        if readable:
            data = os.read(source, CHUNK)
            if not data:
                return
            yield data


def _pass_on(
    shell: KeeperProcess, context: AttemptContext, stopped: threading.Event, is_python: threading.Event | None
) -> None:
    """Send SIGTERM to the shell and all processes that it started, when a stop is requested.

    stopped: an event that is set when the signal is sent.
    is_python: an event that is set when a process runs Python; None to skip this check.
    """
    while shell.process.poll() is None:
        if context.should_stop():
            stopped.set()
            shell.terminate()
            return
        stopped.wait(STOP_EVERY_S)
        if is_python is not None and _runs_python(shell.process.pid):
            is_python.set()
            is_python = None


def _runs_python(keeper: int) -> bool:
    """Return whether a descendant of this process runs Python. The keeper, a fork of this process, is ignored."""
    with contextlib.suppress(OSError):
        for pid in descendants():
            if pid != keeper and _program(pid).startswith(("python", "pypy")):
                return True
    return False


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:  # the process has ended or belongs to another user
        return ""


def _tell(point: Mapping[str, Any], context: AttemptContext) -> None:
    """Report a JSON object such as {"step": 10, "loss": 2.3} as a point of the training curve.

    If the object has "checkpoint": true, a checkpoint is reported too. If it has "total", progress is reported.
    """
    if type(point["step"]) is not int or not 0 <= point["step"] <= LAST_STEP:
        return
    metrics = {name: value for name, value in numbers(point).items() if not isinstance(value, Mapping)}
    if type(point.get("total")) is int and point["step"] <= point["total"]:
        report_progress(context.emit, point["step"], metrics.pop("total"))
    if metrics:
        context.emit("metrics", step=point["step"], metrics=of_point(metrics))
    if point.get("checkpoint") is True:
        context.emit("checkpoint", step=point["step"], path="final")
