"""Run a trainer that is a shell command, and find the metrics in its output or file."""

import csv
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import Preempted, TrainerFailed, UserError
from experiments.events.kinds import LAST_STEP
from experiments.processes.keeper import Kept, kept
from experiments.tasks.base import Context
from experiments.tasks.own.placeholders import expanded, filled

LINES_KEPT = 200  # of the output's end, where metrics are looked for
STOP_EVERY_S = 0.2
KILLED_IN_SHELL = (128 + signal.SIGKILL, 128 + signal.SIGTERM)  # a shell's exit code for its command's end
READ_S = 10.0  # the rest of its errors, once it has ended
MOST = sys.float_info.max
Metrics = dict[str, Any]


@dataclass(frozen=True)
class Ended:
    """A command that ended successfully: its last printed lines, and whether it was requested to stop."""

    lines: Sequence[str]
    stopped: bool


def run_command(command: str, values: Mapping[str, Any], cwd: Path, context: Context) -> Ended:
    """Run `command` with its placeholders filled, to the end. Its output goes to the log; no process of it is left.

    Raises Preempted if it stopped on request, TrainerFailed for any other exit code than 0; a run whose command was
    killed resumes, like one whose own process was.
    """
    environment = {**os.environ, "ABLATIONS_SEED": str(values["seed"]), "PYTHONUNBUFFERED": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    environment.pop("PYTHONPATH", None)  # the path to this program's packages is not for the trainer
    text, variables = filled(command, values)
    stopped = threading.Event()
    lines: deque[str] = deque(maxlen=LINES_KEPT)
    with kept(
        ["/bin/sh", "-c", text], cwd=cwd, env=environment | variables, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as shell:  # fmt: skip
        threading.Thread(target=_pass_on, args=(shell, context, stopped), daemon=True).start()
        errors: deque[str] = deque(maxlen=LINES_KEPT)
        copying = threading.Thread(target=_copy_errors, args=(shell, errors), daemon=True)
        copying.start()
        assert shell.process.stdout is not None
        for line in shell.process.stdout:
            sys.stdout.write(line)
            lines.append(line.rstrip("\n"))
            _tell(line, context)
        code = shell.process.wait()
        copying.join(READ_S)
    sys.stdout.flush()
    if code != 0 and stopped.is_set():
        raise Preempted(None)
    if code != 0:
        number = -code if code < 0 else code - 128 if code in KILLED_IN_SHELL else 0
        how = f"signal {number}" if number else f"exit code {code}"
        told = f"the command ended with {how}: {expanded(command, values)}"
        raise TrainerFailed(told, _traceback(tuple(errors)), signal=number)
    return Ended(tuple(lines), stopped.is_set())


def _copy_errors(shell: Kept, kept_lines: deque[str]) -> None:
    assert shell.process.stderr is not None
    for line in shell.process.stderr:
        sys.stderr.write(line)
        kept_lines.append(line)
    sys.stderr.flush()


def _traceback(lines: Sequence[str]) -> str:
    """The last traceback of Python among the lines; "" if there is none."""
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    return "".join(lines[starts[-1] :]) if starts else ""


def _pass_on(shell: Kept, context: Context, stopped: threading.Event) -> None:
    """Send SIGTERM to the shell and everything it started when the run shall end."""
    while shell.process.poll() is None:
        if context.should_stop():
            stopped.set()
            shell.terminate()
            return
        stopped.wait(STOP_EVERY_S)


def _tell(line: str, context: Context) -> None:
    """Report a printed {"step": 10, "loss": 2.3} as a point of the curve; with "checkpoint": true also a checkpoint."""
    point = _json_object(line)
    if point is None or type(point.get("step")) is not int or not 0 <= point["step"] <= LAST_STEP:
        return
    numbers = {name: value for name, value in _metrics(point).items() if not isinstance(value, Mapping)}
    if numbers:
        context.emit("metrics", step=point["step"], metrics=numbers)
    if point.get("checkpoint") is True:
        context.emit("checkpoint", step=point["step"], path="final")


def read_metrics(ended: Ended, file: Path | None, command: str) -> Metrics:
    """The metrics from `file` if the command got one, else from its last output. Raises UserError if there are none."""
    if file is None:
        found, place = _printed([line for line in ended.lines if line.strip()]), "at the end of its output"
    else:
        found, place = _written(file), "in the file that it was given for them"
    if found:
        return found
    if ended.stopped:
        raise Preempted(None)  # it saved its state and ended successfully before it had metrics
    raise UserError(
        f"The command ended well, and there are no metrics {place}. Write a JSON object, such as "
        f'{{"accuracy": 93.2}}, or a CSV head and line. The command: {command}'
    )


def _printed(lines: Sequence[str]) -> Metrics | None:
    """The last JSON object that is not a point of the curve, else the last two lines as CSV."""
    for line in reversed(lines):
        found = _json_object(line)
        if found is not None and "step" not in found:
            return _metrics(found)
    return _csv(lines[-2], lines[-1]) if len(lines) > 1 else None


def _written(file: Path) -> Metrics | None:
    """A JSON object, or CSV: the head, and the last line."""
    if not file.is_file():
        return None
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    found, lines = _json_object(text), text.splitlines()
    if found is not None:
        return _metrics(found)
    return _csv(lines[0], lines[-1]) if len(lines) > 1 else None


def _json_object(text: str) -> dict[str, Any] | None:
    if not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _metrics(found: Mapping[str, Any]) -> Metrics:
    """Numbers, and numbers by set; texts, flags and integers beyond a float's range are dropped."""
    wanted = {name: value for name, value in found.items() if name not in ("step", "checkpoint")}
    return {n: v for n, v in wanted.items() if isinstance(v, Mapping | float) or (type(v) is int and abs(v) < MOST)}


def _csv(head: str, line: str) -> Metrics | None:
    """Names and numbers; other cells (a date, a name) are dropped. None if the two lines do not belong together."""
    names, values = next(csv.reader([head])), next(csv.reader([line]))
    if len(names) != len(values) or any(_is_number(name) for name in names):
        return None
    return {n.strip(): float(v) for n, v in zip(names, values, strict=True) if _is_number(v)} or None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
