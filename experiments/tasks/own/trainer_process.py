"""The process of a user's trainer. A plan starts it to read and check settings, and a child starts it to train.

The process runs experiments/client/ablations_task and no other code of this program. The process runs under a keeper,
which kills it when this process ends. Messages are lines of JSON on its standard input and output. The output of the
trainer is copied to standard error of this process. If this process is a child, its standard error goes to the log.
"""

import contextlib
import json
import os
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.attempt_context import AttemptContext
from experiments.client.ablations_task.changes import CHANGES
from experiments.client.ablations_task.values import Channel
from experiments.config.network_change import installed_changes
from experiments.errors import DeviceFailed, DiskFull, Diverged, OutOfMemory, Preempted, TrainerFailed, UserError
from experiments.processes.keeper import KeeperProcess
from experiments.store.layout import LOG
from experiments.tasks.own.context import new_checkpoint, report
from experiments.tasks.own.interpreter import CLIENT, first_lines, interpreter, refuse_silent
from experiments.tasks.own.run_code import HOME, environment
from experiments.tasks.own.trainer_output import Log, copy

STOP_EVERY_S = 0.2  # seconds between checks for a request to stop
READ_S = 10.0  # maximum time for reading the rest of the output after the process has ended
_FRAMES = 12  # number of lines of a traceback in a message


class TrainerProcess:
    """A process that has loaded the module of a user's trainer. After `close`, the next request starts it again.

    task: module:OBJECT.
    folder: the study's folder.
    python: the interpreter, as the study names it; "" for the interpreter of this program.
    """

    def __init__(self, task: str, folder: str, python: str) -> None:
        self.task, self._folder, self._python = task, folder, python
        self._kept: KeeperProcess | None = None
        self._log = Log()
        self._turn = threading.RLock()
        self._checked: set[str] = set()
        self._versions: dict[tuple[str, ...], dict[str, str]] = {}
        self.declared: dict[str, Any] = {}
        self._load()

    def close(self) -> None:
        """End the process. The next request starts another one."""
        with self._turn:
            if self._kept is not None:
                self._kept.close()
                self._copying.join(READ_S)
                for stream in (self._kept.process.stdin, self._kept.process.stdout):
                    with contextlib.suppress(OSError):
                        stream.close() if stream else None
            self._kept = None

    def check(self, settings: Mapping[str, Any]) -> None:
        """Check settings in the trainer's process.

        Raises ValueError if the user's settings type refuses a value. Raises UserError if the check fails for another
        reason.
        """
        key = json.dumps(settings, sort_keys=True)
        if key in self._checked:
            return
        try:
            self.ask({"do": "check", "settings": settings})
        except TrainerFailed as failed:
            if failed.is_value:
                raise ValueError(failed.reason) from None
            raise UserError(f"The task {self.task} refuses its settings: {failed}\n{failed.frames(_FRAMES)}") from None
        self._checked.add(key)

    def answer(self, what: str, settings: Mapping[str, Any]) -> Any:
        """Return the result of the trainer's function `reads`, `num_params` or `cost`; None if it is not declared."""
        if what not in self.declared["has"]:
            return None
        try:
            return self.ask({"do": what, "settings": settings})["answer"]
        except TrainerFailed as failed:
            raise UserError(
                f"The function {what}= of the task {self.task} failed: {failed}\n{failed.frames(_FRAMES)}"
            ) from None

    def versions(self, packages: Sequence[str]) -> dict[str, str]:
        """Return the versions of the interpreter and of its packages, by import name."""
        key = tuple(packages)
        if key not in self._versions:
            self._versions[key] = self.ask({"do": "versions", "names": list(key)})["versions"]
        return self._versions[key]

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a request and return the answer.

        Raises the error that the user's code raised; most errors are raised as TrainerFailed.
        """
        with self._turn:
            if self._kept is None:
                self._load()
            return self._answer(request)

    def train(self, request: Mapping[str, Any], context: AttemptContext) -> dict[str, Any]:
        """Train, and serve the requests of the trainer's `RunContext` with `context`. End the process afterwards."""
        with self._turn:
            if self._kept is None:
                self._load()
            self._log.limit(context.folder / LOG)
            try:
                self._say({"do": "train", **request})
                return self._serve(context)
            finally:
                self.close()

    def _load(self) -> None:
        module, _, attribute = self.task.partition(":")
        folder = Path(self._folder) if self._folder else None
        path = interpreter(self._python, folder)
        clients = [str(change.client) for change in installed_changes().values() if change.client]
        self._kept = KeeperProcess(
            [str(path), str(CLIENT)],
            env=environment() | {"ABLATIONS_PROGRAM": str(HOME), CHANGES: os.pathsep.join(clients)},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        stdin, stdout, stderr = self._kept.process.stdin, self._kept.process.stdout, self._kept.process.stderr
        assert stdin is not None and stdout is not None
        self._channel = Channel(stdout.fileno(), stdin.fileno())
        self._copying = threading.Thread(target=copy, args=(stderr, self._log), daemon=True)
        self._copying.start()
        try:
            lines = first_lines(stdout.fileno(), self._python, path)
            greeting = next((line for line in lines if line.startswith(b'{"python": ')), b"{}")
            if not json.loads(greeting).get("new_enough"):
                refuse_silent(self._python, path, self._kept.process.poll())
            self.declared = self._answer(
                {"do": "load", "module": module, "attribute": attribute, "folder": self._folder}
            )
        except TrainerFailed as failed:
            self.close()
            where = f"the study's folder {self._folder}, then along " if self._folder else ""
            raise UserError(
                f"The task {self.task!r} could not be imported: {failed} Searched: {where}the path of "
                f"{path}.\n{failed.frames(_FRAMES)}".rstrip()
            ) from None
        except UserError as error:
            self.close()
            raise UserError(f"The task {self.task!r}: {error}") from None
        except BaseException:
            self.close()
            raise

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        self._say(request)
        answer: dict[str, Any] | None = self._channel.next()
        if answer is None:
            raise self._died()
        if "failed" in answer:
            raise _error(answer["failed"])
        return answer

    def _serve(self, context: AttemptContext) -> dict[str, Any]:
        """Answer the trainer's messages until the trainer returns or fails."""
        asked = False
        with contextlib.ExitStack() as writing:
            while True:
                if not asked and context.should_stop():
                    asked = True
                    self._say({"stop": True})
                if not self._channel.readable(STOP_EVERY_S):
                    # The process may have ended while its own child processes still have the pipe open.
                    if self._kept is not None and self._kept.process.poll() is not None:
                        raise self._died(request_to_stop=asked)
                    continue
                message: dict[str, Any] | None = self._channel.next()
                if message is None:
                    raise self._died(request_to_stop=asked)
                if "event" in message:
                    report(context, message)
                elif "checkpoint" in message:
                    folder = writing.enter_context(new_checkpoint(context, message["checkpoint"]))
                    self._say({"folder": str(folder)})
                elif "abandon" in message:
                    with contextlib.suppress(_Abandoned):
                        writing.__exit__(_Abandoned, _Abandoned(), None)
                    self._say({"ending": False})
                elif "keep" in message:
                    writing.close()
                    self._say({"ending": context.should_stop()})
                elif "failed" in message:
                    raise _error(message["failed"])
                else:
                    return message

    def _say(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):  # the process has ended; the next read reports it
            self._channel.say(message)

    def _died(self, *, request_to_stop: bool = False) -> Exception:
        """Return the error for a process that ended without an answer, by a signal or by os._exit."""
        assert self._kept is not None
        code = self._kept.process.wait()
        if request_to_stop:
            return Preempted(None)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return TrainerFailed(f"the process of the trainer ended with {how}.", "", signal=max(0, -code))


class _Abandoned(Exception):  # noqa: N818 - a signal to this module, not an error
    """The user's code raised an error inside the block of a checkpoint."""


def _error(failed: Mapping[str, Any]) -> Exception:
    """Return the exception of this program for an exception that the user's code raised."""
    message, kind = failed.get("message", ""), failed["class"]
    if kind == "preempted":
        return Preempted(failed["step"])
    known = {"user_error": UserError, "diverged": Diverged, "disk_full": DiskFull}
    if kind in known:
        error = known[kind](message)
        error.__cause__ = TrainerFailed(message, failed["traceback"])  # the traceback of the user's code
        return error
    place = f" ({failed['place'][0]}, line {failed['place'][1]})" if failed["place"] else ""
    text = f"{failed['type']}: {message}{place}." if message else f"{failed['type']}{place}."
    of_device = {"out_of_memory": OutOfMemory, "device": DeviceFailed}
    if kind in of_device:
        return of_device[kind]((message or failed["type"]).splitlines()[0])
    return TrainerFailed(text, failed["traceback"], reason=message if failed["is_value"] else "")
