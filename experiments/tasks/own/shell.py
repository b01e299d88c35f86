"""Run a trainer that is a shell command, and find the metrics in its output or file."""

import os
import signal
import subprocess
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import Preempted, TrainerFailed, UserError
from experiments.events.kinds import LAST_STEP
from experiments.processes.keeper import Kept, kept
from experiments.store.layout import LOG
from experiments.tasks.base import Context
from experiments.tasks.own.output import CHUNK, LONGEST_LINE, Log, Metrics, Printed, Tail, copy, numbers, written
from experiments.tasks.own.placeholders import expanded, filled
from experiments.tasks.own.returned import of_point

STOP_EVERY_S = 0.2
KILLED_IN_SHELL = (128 + signal.SIGKILL, 128 + signal.SIGTERM)  # a shell's exit code for its command's end
READ_S = 10.0  # the rest of its errors, once it has ended


@dataclass(frozen=True)
class Ended:
    """A command that ended successfully: the metrics that it printed, and whether it was requested to stop."""

    metrics: Metrics | None
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
    stopped, log, errors = threading.Event(), Log(), Tail()
    log.limit(context.folder / LOG)
    printed = Printed(lambda point: _tell(point, context))
    with kept(
        ["/bin/sh", "-c", text], cwd=cwd, env=environment | variables,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as shell:  # fmt: skip
        assert shell.process.stdout is not None and shell.process.stderr is not None
        threading.Thread(target=_pass_on, args=(shell, context, stopped), daemon=True).start()
        copying = threading.Thread(target=copy, args=(shell.process.stderr, log, errors.take), daemon=True)
        copying.start()
        while data := os.read(shell.process.stdout.fileno(), CHUNK):
            log.write(data, to=1)
            printed.take(data)
        printed.take(b"", final=True)
        code = shell.process.wait()
        copying.join(READ_S)
    if code != 0 and stopped.is_set():
        raise Preempted(None)
    if code != 0:
        number = -code if code < 0 else code - 128 if code in KILLED_IN_SHELL else 0
        how = f"signal {number}" if number else f"exit code {code}"
        told = f"the command ended with {how}: {expanded(command, values)}"
        raise TrainerFailed(told, errors.traceback(), signal=number)
    return Ended(printed.metrics, stopped.is_set())


def _pass_on(shell: Kept, context: Context, stopped: threading.Event) -> None:
    """Send SIGTERM to the shell and everything it started when the run shall end."""
    while shell.process.poll() is None:
        if context.should_stop():
            stopped.set()
            shell.terminate()
            return
        stopped.wait(STOP_EVERY_S)


def _tell(point: Mapping[str, Any], context: Context) -> None:
    """Report a printed {"step": 10, "loss": 2.3} as a point of the curve; with "checkpoint": true also a checkpoint."""
    if type(point["step"]) is not int or not 0 <= point["step"] <= LAST_STEP:
        return
    found = {name: value for name, value in numbers(point).items() if not isinstance(value, Mapping)}
    if found:
        context.emit("metrics", step=point["step"], metrics=of_point(found))
    if point.get("checkpoint") is True:
        context.emit("checkpoint", step=point["step"], path="final")


def read_metrics(ended: Ended, file: Path | None, command: str) -> Metrics:
    """The metrics from `file` if the command got one, else from its last output. Raises UserError if there are none."""
    found = ended.metrics if file is None else written(file)
    if found:
        return found
    if ended.stopped:
        raise Preempted(None)  # it saved its state and ended successfully before it had metrics
    place = "at the end of its output" if file is None else "in the file that it was given for them"
    raise UserError(
        f"The command ended well, and there are no metrics {place}. Write a JSON object, such as "
        f'{{"accuracy": 93.2}}, or a CSV head and line; a line may have {LONGEST_LINE:,} characters. The command: '
        f"{command}"
    )
