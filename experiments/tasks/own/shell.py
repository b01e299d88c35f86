"""Run a shell command as a trainer: fill in the settings, and find metrics in its output. Imports no torch."""

import codecs
import contextlib
import io
import json
import math
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from experiments.attempt_context import AttemptContext
from experiments.command_words import PLACEHOLDER
from experiments.errors import Preempted, TrainerFailed, UserError
from experiments.events.lines import LAST_STEP
from experiments.processes.keeper import KeeperProcess, kept
from experiments.processes.process_identity import descendants
from experiments.store.layout import LOG
from experiments.tasks.own.context import of_point
from experiments.tasks.own.patterns import Readings, report_progress
from experiments.tasks.own.run_code import WATCH, environment

# --- Fill the values of settings into a command (experiments/command_words.py)
# No value is parsed as shell code: a placeholder is replaced by an environment variable in quotes, such as
# "${ABLATIONS_VALUE_0}", and the shell does not parse the value of a variable. These quotes would end quotes around a
# placeholder, so a quoted placeholder is refused.


_INSIDE = {"'": "single quotes", '"': "double quotes", "`": "backquotes", "\\": "a backslash", "<": "a here-document"}


def flags(command: str) -> dict[str, str]:
    """Return setting → flag for the placeholders of flags, such as {"bn": "--no-bn"}."""
    return {
        placeholder[1]: placeholder[2] for placeholder in PLACEHOLDER.finditer(command) if placeholder[2] is not None
    }


def laid_over(command: str) -> str:
    """Return FILE of the placeholder `{settings.yaml:FILE}`; "" if the command has no such placeholder."""
    return next((place[3] for place in PLACEHOLDER.finditer(command) if place[3]), "")


def flag(name: str, written: str, value: Any) -> str:
    """Return the flag that is passed for a value that is true or false; "" if no flag is passed.

    written: the flag in the placeholder. `--flag` is passed if the value is true. `--no-flag` is passed if the value is
        false. A setting with the name `no` or `no_…` is an exception: `--no-flag` is passed if its value is true. For
        `--yes|--no`, the first flag is passed if the value is true, and the second one if it is false. Either of them
        may be empty.
    """
    first, bar, second = written.partition("|")
    negates = re.match("--?no[-_]", first) and not re.match("no(_|$)", name.rpartition(".")[2])
    if not bar and negates:
        first, second = "", first
    return first if value else second


def expanded(command: str, values: Mapping[str, Any]) -> str:
    """Return the command with the values of settings, for messages."""
    return _put_in(command, values, shlex.quote)


def filled(command: str, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the command with placeholders replaced by environment variables, and these variables.

    Other braces in the command are not changed.
    """
    variables: dict[str, str] = {}

    def variable(value: str) -> str:
        name = f"ABLATIONS_VALUE_{len(variables)}"
        variables[name] = value
        return f'"${{{name}}}"'

    return _put_in(command, values, variable), variables


def _put_in(command: str, values: Mapping[str, Any], written: Callable[[str], str]) -> str:
    """Replace the placeholders of a command. Placeholders without a value are not changed.

    written: function from the text of a value to the text that replaces its placeholder. Flags are inserted directly.
    """

    def value_of(place: re.Match[str]) -> str:
        if place[1] not in values:
            return place[0]
        value = values[place[1]]
        return written(word(value)) if place[2] is None else flag(place[1], place[2], value)

    return PLACEHOLDER.sub(value_of, command)


def word(value: Any) -> str:
    """Return the value of a setting as an argument of the command."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | tuple) else str(value)


def refuse_quoted(command: str) -> None:
    """Raise UserError if a placeholder is inside quotes."""
    for name, place in _contexts(command):
        if place:
            raise UserError(
                f"The command has {{{name}}} inside {_INSIDE[place]}. The program quotes values for the shell, and "
                f"quotes around them would undo this. Write {{{name}}} without quotes, also as a part of a word "
                f"(--name=run-{{{name}}}); for text with several values read {{settings}}, a JSON file. The command: "
                f"{command}"
            )


def _contexts(command: str) -> Iterator[tuple[str, str]]:
    """Yield every placeholder with the quotes around it: a key of _INSIDE, or "" for none.

    Quotes are read as a POSIX shell reads them.
    """
    open_: list[str] = []  # open quotes and substitutions: ' " ` (
    document = False  # whether a here-document has begun
    at = 0
    while at < len(command):
        character, inside = command[at], open_[-1] if open_ else ""
        placeholder = PLACEHOLDER.match(command, at)
        if placeholder:
            yield placeholder[1], "`" if "`" in open_ else inside if inside in ("'", '"') else "<" * document
            at = placeholder.end()
        elif inside == "'":
            at += 1
            if character == "'":
                open_.pop()
        elif character == "\\":
            escaped = PLACEHOLDER.match(command, at + 1)
            if escaped:
                yield escaped[1], "\\"
            at += 2
        elif character in "\"`'" and not (inside == '"' and character == "'"):
            at += 1
            if inside == character:
                open_.pop()
            else:
                open_.append(character)
        elif inside != '"' and character == "#" and (at == 0 or command[at - 1] in " \t\n;|&("):
            end = command.find("\n", at)
            at = len(command) if end < 0 else end
        else:
            if command.startswith("$(", at) or (character == "(" and inside != '"'):
                open_.append("(")
                at += character == "$"
            elif character == ")" and inside == "(":
                open_.pop()
            document = document or _begins_document(command, at)
            at += 1


def _begins_document(command: str, at: int) -> bool:
    """Return whether position `at` ends a line with a here-document (<<EOF, but not <<<text)."""
    return command[at] == "\n" and re.search(r"(?<!<)<<(?!<)", command[command.rfind("\n", 0, at) + 1 : at]) is not None


# --- Copy the output of a trainer to the attempt's log, and find the metrics of a command in it
# A log keeps the beginning and the end of the output. The memory is bounded for any output.


CHUNK = 1 << 16  # bytes to read at once
HEAD = TAIL = 2 << 20  # bytes kept of the beginning and of the end of a log; the end may have up to twice as many
LONGEST_LINE = 16 << 20  # maximum length of a line with metrics in characters
LAST_LINES = 200  # metrics must be within this number of lines at the end of the output
_LONGEST_FILE = 64 << 20  # maximum size of a file with metrics in bytes
_MOST = sys.float_info.max
Metrics = dict[str, Any]


class Log:
    """Write a trainer's output to the output of this process, which goes to the attempt's log.

    Only whole lines are written, so that lines of standard output and standard error do not mix.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._turn = threading.Lock()  # two threads write standard output and standard error
        self._begun = {1: b"", 2: b""}  # incomplete lines
        self._left_out = self._mark = 0  # number of bytes that were left out, and length of the note about them

    def limit(self, file: Path) -> None:
        """Limit the size of `file`, if standard error of this process goes to this file."""
        if file.exists() and os.path.samestat(file.stat(), os.fstat(2)):
            self._file = file

    def size(self) -> int | None:
        """Return the size of the log in bytes; None if standard error does not go to the log file."""
        return None if self._file is None else os.fstat(2).st_size

    def ranges(self, begin: int) -> dict[str, Any]:
        """Return the log's ranges of output since `begin`, as a record (experiments/store/results.py, Output)."""
        end = self.size() or 0
        if not self._left_out:
            return {"ranges": [[begin, end]], "left_out": 0}
        return {"ranges": [[begin, HEAD], [HEAD + self._mark, end]], "left_out": self._left_out}

    def write(self, data: bytes, to: int = 2) -> None:
        """Append data to standard output (1) or standard error (2). Raises OSError, for example if the disk is full."""
        with self._turn:
            data = self._begun[to] + data
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if len(data) - end > CHUNK:
                end = len(data)
            self._begun[to] = data[end:]
            self._append(data[:end], to)

    def end(self, to: int = 2) -> None:
        """Append the last line, if it is incomplete. Raises OSError."""
        with self._turn:
            rest, self._begun[to] = self._begun[to], b""
            self._append(rest and rest + b"\n", to)

    def _append(self, data: bytes, to: int) -> None:
        while data:
            data = data[os.write(to, data) :]
        if self._file is not None and os.fstat(to).st_size > HEAD + 2 * TAIL:
            self._shorten(self._file)

    def _shorten(self, file: Path) -> None:
        """Remove the middle of the log. All writers append to the file, so the next line follows the shortened log."""
        with file.open("r+b") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(end - TAIL)
            tail = stream.read()
            tail = tail[tail.find(b"\n", 0, CHUNK) + 1 :]  # start at the beginning of a line, if there is one nearby
            self._left_out += end - len(tail) - HEAD - self._mark
            mark = f"\n… {self._left_out:,} bytes left out …\n".encode()
            self._mark = len(mark)
            stream.seek(HEAD)
            stream.write(mark + tail)
            stream.truncate()


def copy(stream: IO[bytes], log: Log, take: Callable[[bytes], None] = lambda data: None) -> None:
    """Copy a trainer's standard error to the log until it closes. Errors of the log are ignored.

    take: called with the data.
    """
    with stream:
        while data := os.read(stream.fileno(), CHUNK):
            take(data)
            with contextlib.suppress(OSError):  # if the disk is full, the trainer's next file reports it
                log.write(data)
    with contextlib.suppress(OSError):
        log.end()


class OutputTail:
    """The last CHUNK bytes of a stream."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        """Append data."""
        self._kept += data
        del self._kept[:-CHUNK]

    def traceback(self) -> str:
        """Return the last Python traceback in these bytes; "" if there is none."""
        lines = self._kept.decode(errors="replace").splitlines(keepends=True)
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        return "".join(lines[starts[-1] :]) if starts else ""


class Printed:
    """Split the output of a command into lines, and find JSON objects in them.

    tell: called with each JSON object that has the key "step". It is a point of the training curve.
    look: called with each line that is not blank.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], look: Callable[[str], None] = lambda line: None) -> None:
        self._tell, self._look = tell, look
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._begun: list[str] = []  # parts of the incomplete line
        self._length = 0
        self._count = self._found_at = 0  # number of lines, and the line with the metrics
        self._found: Metrics | None = None

    def take(self, data: bytes, final: bool = False) -> None:
        """Read data. final: whether the output ends here."""
        *lines, rest = self._decoder.decode(data, final).split("\n")
        for line in lines:
            self._line("".join([*self._begun, line]))
            self._begun, self._length = [], 0
        if self._length <= LONGEST_LINE:
            self._begun.append(rest)
        self._length += len(rest)
        if final and self._length:
            self._line("".join(self._begun))

    def _line(self, line: str) -> None:
        self._count += 1
        if not line.strip():
            return
        self._look(line)
        content = _json_object(line)
        if content is None:
            return
        if "step" in content:
            self._tell(content)
        else:
            self._found, self._found_at = numbers(content), self._count

    @property
    def metrics(self) -> Metrics | None:
        """The last JSON object without "step", if it is among the last LAST_LINES lines; otherwise None."""
        return self._found if self._count - self._found_at < LAST_LINES else None


def written(file: Path) -> Metrics | None:
    """Return the metrics in a file with a JSON object; None if there are none. Raises UserError if it is too large."""
    if not file.is_file():
        return None
    if file.stat().st_size > _LONGEST_FILE:
        raise UserError(f"The file of metrics has {file.stat().st_size:,} bytes: at most {_LONGEST_FILE:,} are read.")
    content = _json_object(file.read_text(encoding="utf-8", errors="replace").strip())
    return None if content is None else numbers(content)


def numbers(content: Mapping[str, Any]) -> Metrics:
    """Return the entries that are numbers or mappings (metrics by set).

    Texts, truth values and integers beyond the range of a float are left out.
    """
    wanted = {name: value for name, value in content.items() if name not in ("step", "checkpoint")}
    return {n: v for n, v in wanted.items() if isinstance(v, Mapping | float) or (type(v) is int and abs(v) < _MOST)}


def _json_object(text: str) -> dict[str, Any] | None:
    if len(text) > LONGEST_LINE or not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


# --- The process of a command


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
