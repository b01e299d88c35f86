"""The process of a user's trainer. A plan starts it to read and check settings, and a child starts it to train.

The process runs experiments/client/ablations_task and no other code of this program. It runs under a keeper, which
kills it when this process ends. Messages are lines of JSON on its standard input and output. The output of the trainer
is copied to standard error of this process, which in a child goes to the log.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.attempt_context import AttemptContext
from experiments.client import ablations_task
from experiments.client.ablations_task.changes import CHANGES
from experiments.client.ablations_task.values import Channel
from experiments.config.network_change import installed_changes
from experiments.errors import DeviceFailed, DiskFull, Diverged, OutOfMemory, Preempted, TrainerFailed, UserError
from experiments.processes.keeper import KeeperProcess, kept
from experiments.store.layout import LOG
from experiments.tasks.own.context import new_checkpoint, report
from experiments.tasks.own.run_code import HOME, environment
from experiments.tasks.own.shell import Log, copy

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

        Raises ValueError if the user's settings type refuses a value. Raises UserError if its check fails otherwise.
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


# --- The interpreter of a trainer, which is this program's interpreter unless the study sets `python`


CLIENT = Path(ablations_task.__file__).with_name("__main__.py")
OLDEST = (3, 8)
ANSWER_S = 60.0  # time limit for the first line; an interpreter on a network disk may start slowly
_LONGEST = 1 << 16  # maximum number of bytes that an interpreter may print when it starts


def interpreter(python: str, folder: Path | None) -> Path:
    """Return the interpreter that runs a trainer.

    Symbolic links are not resolved. The link in a virtual environment leads to an interpreter that does not have the
    packages of the environment.

    python: the interpreter, as the study names it; "" for the interpreter of this program.
    folder: the study's folder, to which `python` is relative.

    Raises UserError if the file is missing or cannot be executed.
    """
    if not python:
        return Path(sys.executable)
    path = (folder or Path.cwd()) / os.path.expanduser(python)  # noqa: PTH111 - os.path accepts any text
    if not os.path.exists(path):  # noqa: PTH110
        raise UserError(_cannot(python, path, "does not exist"))
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(_cannot(python, path, "is not a file that can be executed"))
    return path


def first_lines(source: int, python: str, path: Path) -> Iterator[bytes]:
    """Yield the first lines that an interpreter prints, until it ends or has printed 64 KiB.

    Raises UserError if the interpreter has not ended after ANSWER_S seconds and prints nothing more.
    """
    rest, count, until = b"", 0, time.monotonic() + ANSWER_S
    while count < _LONGEST:
        if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
            raise UserError(_cannot(python, path, f"has not answered within {ANSWER_S:g} s"))
        more = os.read(source, _LONGEST)
        *lines, rest = (rest + more).split(b"\n")
        yield from lines
        if not more:
            return
        count += len(more)


def refuse_silent(python: str, path: Path, code: int | None) -> None:
    """Raise UserError with the reason why an interpreter cannot run a trainer. code: its exit code."""
    ask = [str(path), "-c", "import sys; print('version=%d.%d' % sys.version_info[:2])"]
    with kept(ask, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as asked:
        assert asked.process.stdout is not None
        lines = first_lines(asked.process.stdout.fileno(), python, path)
        answer = next((line for line in lines if line.startswith(b"version=")), b"").decode().removeprefix("version=")
    if not answer:
        raise UserError(_cannot(python, path, "is not a Python interpreter"))
    if tuple(map(int, answer.split("."))) < OLDEST:
        raise UserError(_cannot(python, path, f"is Python {answer}"))
    raise UserError(_cannot(python, path, f"ended with exit code {code} before it ran anything"))


def _cannot(python: str, path: Path, why: str) -> str:
    where = f'python = "{python}": {path}' if python else str(path)
    return (
        f"{where} {why}. Name an interpreter of Python {OLDEST[0]}.{OLDEST[1]} or newer, relative to the study's "
        'folder or absolute, such as python = "../myproject/.venv/bin/python".'
    )
