"""Run a trainer that is a shell command: fill in its settings, keep its output, find its metrics. Imports no torch."""

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

# --- The values of settings in a command (experiments/command_words.py). No value is ever read as shell code
# A placeholder becomes the expansion of an environment variable ("${ABLATIONS_VALUE_0}"), whose value the shell does
# not parse. Inside of quotes in the command it would end them, so a quoted placeholder is refused.


_INSIDE = {"'": "single quotes", '"': "double quotes", "`": "backquotes", "\\": "a backslash", "<": "a here-document"}


def flags(command: str) -> dict[str, str]:
    """The settings that are written as flags, and their flags as the command has them."""
    return {
        placeholder[1]: placeholder[2] for placeholder in PLACEHOLDER.finditer(command) if placeholder[2] is not None
    }


def laid_over(command: str) -> str:
    """The file over which `{settings.yaml:FILE}` lays the settings; "" if the command has no such place."""
    return next((place[3] for place in PLACEHOLDER.finditer(command) if place[3]), "")


def flag(name: str, written: str, value: Any) -> str:
    """The flag that a command gets for a true or false value; "" for none.

    written: `--flag` is passed if the value is true; `--no-flag` if it is false, unless the setting's name begins with
    "no"; of `--yes|--no` the first if it is true, the second if it is false. Either side may be empty.
    """
    first, bar, second = written.partition("|")
    negates = re.match("--?no[-_]", first) and not re.match("no(_|$)", name.rpartition(".")[2])
    if not bar and negates:
        first, second = "", first
    return first if value else second


def expanded(command: str, values: Mapping[str, Any]) -> str:
    """The command as a person would write it, for messages."""
    return _put_in(command, values, shlex.quote)


def filled(command: str, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The command with placeholders as variables, and these variables; other braces stay."""
    variables: dict[str, str] = {}

    def variable(value: str) -> str:
        name = f"ABLATIONS_VALUE_{len(variables)}"
        variables[name] = value
        return f'"${{{name}}}"'

    return _put_in(command, values, variable), variables


def _put_in(command: str, values: Mapping[str, Any], written: Callable[[str], str]) -> str:
    """The command with flags, and other values as `written`; names without a value stay."""

    def value_of(place: re.Match[str]) -> str:
        if place[1] not in values:
            return place[0]
        value = values[place[1]]
        return written(word(value)) if place[2] is None else flag(place[1], place[2], value)

    return PLACEHOLDER.sub(value_of, command)


def word(value: Any) -> str:
    """A setting as a word of the command."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | tuple) else str(value)


def refuse_quoted(command: str) -> None:
    """Raise UserError for a placeholder that the command quotes."""
    for name, place in _contexts(command):
        if place:
            raise UserError(
                f"The command has {{{name}}} inside {_INSIDE[place]}. The program quotes values for the shell, and "
                f"quotes around them would undo this. Write {{{name}}} without quotes, also as a part of a word "
                f"(--name=run-{{{name}}}); for text with several values read {{settings}}, a JSON file. The command: "
                f"{command}"
            )


def _contexts(command: str) -> Iterator[tuple[str, str]]:
    """Every placeholder and its quotes, a key of _INSIDE; "" for none. Reads quotes like a POSIX shell."""
    open_: list[str] = []  # quotes and substitutions that have begun: ' " ` (
    document = False  # the lines after one with <<
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
    """Return whether a here-document (<<EOF, not <<<text) begins on the line that ends here."""
    return command[at] == "\n" and re.search(r"(?<!<)<<(?!<)", command[command.rfind("\n", 0, at) + 1 : at]) is not None


# --- What a trainer prints: copied to its attempt's log, of which begin and end are kept; and a command's metrics in it
# All of it in bounded memory, whatever is printed.


CHUNK = 1 << 16
HEAD = TAIL = 2 << 20  # bytes of a log: its begin, and of its end this much to twice as much
LONGEST_LINE = 16 << 20  # characters of a line that may have metrics
LAST_LINES = 200  # of the output, where metrics are looked for
_LONGEST_FILE = 64 << 20  # bytes of a file of metrics
_MOST = sys.float_info.max
Metrics = dict[str, Any]


class Log:
    """Writer of a trainer's output to this process's output, which is the attempt's log.

    It gets whole lines, so that a line of standard error never stands within one of standard output.
    """

    def __init__(self) -> None:
        self._file: Path | None = None
        self._turn = threading.Lock()  # standard output and standard error come from two threads
        self._begun = {1: b"", 2: b""}  # lines that are not complete
        self._left_out = self._mark = 0  # bytes

    def limit(self, file: Path) -> None:
        """Keep `file` short, if this process's standard error goes there and not to a terminal."""
        if file.exists() and os.path.samestat(file.stat(), os.fstat(2)):
            self._file = file

    def size(self) -> int | None:
        """Bytes of the log; None if the output goes to a terminal."""
        return None if self._file is None else os.fstat(2).st_size

    def ranges(self, begin: int) -> dict[str, Any]:
        """Return the log's ranges of output since `begin`, as a record (experiments/store/results.py, Output)."""
        end = self.size() or 0
        if not self._left_out:
            return {"ranges": [[begin, end]], "left_out": 0}
        return {"ranges": [[begin, HEAD], [HEAD + self._mark, end]], "left_out": self._left_out}

    def write(self, data: bytes, to: int = 2) -> None:
        """Append to standard output (1) or standard error (2). Raises OSError, for a full disk."""
        with self._turn:
            data = self._begun[to] + data
            end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
            if len(data) - end > CHUNK:
                end = len(data)
            self._begun[to] = data[end:]
            self._append(data[:end], to)

    def end(self, to: int = 2) -> None:
        """Append what is there of a last line. Raises OSError."""
        with self._turn:
            rest, self._begun[to] = self._begun[to], b""
            self._append(rest and rest + b"\n", to)

    def _append(self, data: bytes, to: int) -> None:
        while data:
            data = data[os.write(to, data) :]
        if self._file is not None and os.fstat(to).st_size > HEAD + 2 * TAIL:
            self._shorten(self._file)

    def _shorten(self, file: Path) -> None:
        """Leave out the middle. Whoever writes there appends, so the next line follows on the end that is kept."""
        with file.open("r+b") as stream:
            end = stream.seek(0, os.SEEK_END)
            stream.seek(end - TAIL)
            tail = stream.read()
            tail = tail[tail.find(b"\n", 0, CHUNK) + 1 :]  # from the begin of a line, if one begins here
            self._left_out += end - len(tail) - HEAD - self._mark
            mark = f"\n… {self._left_out:,} bytes left out …\n".encode()
            self._mark = len(mark)
            stream.seek(HEAD)
            stream.write(mark + tail)
            stream.truncate()


def copy(stream: IO[bytes], log: Log, take: Callable[[bytes], None] = lambda data: None) -> None:
    """Copy a trainer's standard error to the log until it closes; a log that takes nothing does not block it."""
    with stream:
        while data := os.read(stream.fileno(), CHUNK):
            take(data)
            with contextlib.suppress(OSError):  # the disk is full: the trainer's next file says so too
                log.write(data)
    with contextlib.suppress(OSError):
        log.end()


class OutputTail:
    """The last bytes of a stream."""

    def __init__(self) -> None:
        self._kept = bytearray()

    def take(self, data: bytes) -> None:
        """Append what was printed."""
        self._kept += data
        del self._kept[:-CHUNK]

    def traceback(self) -> str:
        """The last traceback of Python in it; "" if there is none."""
        lines = self._kept.decode(errors="replace").splitlines(keepends=True)
        starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
        return "".join(lines[starts[-1] :]) if starts else ""


class Printed:
    """The lines that a command prints: points of the curve as they come, and its metrics among the last lines.

    tell: called with each JSON object that has a "step". look: called with each line.
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None], look: Callable[[str], None] = lambda line: None) -> None:
        self._tell, self._look = tell, look
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._begun: list[str] = []  # parts of the line that is not complete
        self._length = 0
        self._count = self._found_at = 0  # lines
        self._found: Metrics | None = None

    def take(self, data: bytes, final: bool = False) -> None:
        """Read what was printed. `final`: nothing follows."""
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
        """The last JSON object among the last lines that is no point of the curve."""
        return self._found if self._count - self._found_at < LAST_LINES else None


def written(file: Path) -> Metrics | None:
    """The metrics in a file, a JSON object. Raises UserError."""
    if not file.is_file():
        return None
    if file.stat().st_size > _LONGEST_FILE:
        raise UserError(f"The file of metrics has {file.stat().st_size:,} bytes: at most {_LONGEST_FILE:,} are read.")
    content = _json_object(file.read_text(encoding="utf-8", errors="replace").strip())
    return None if content is None else numbers(content)


def numbers(content: Mapping[str, Any]) -> Metrics:
    """Numbers, and numbers by set; texts, flags and integers beyond a float's range are dropped."""
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


# --- The command's process


STOP_EVERY_S = 0.2
KILLED_IN_SHELL = (128 + signal.SIGKILL, 128 + signal.SIGTERM)  # a shell's exit code for its command's end
READ_S = 10.0  # the rest of its errors, once it has ended


@dataclass(frozen=True)
class Ended:
    """A command that ended successfully: the metrics that it printed, and whether it was requested to stop.

    is_python: whether the command names Python; if asked, also whether a process of it was seen to run Python.
    output: where what it printed lies in the log (experiments/store/results.py, Output); None if the log is no file.
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
    """Run `command` with its placeholders filled, to the end. Its output goes to the log; no process of it is left.

    readings: what is read of it by patterns. path: a folder whose modules Python shall find, before the user's own.

    Raises Preempted if it stopped on request, TrainerFailed for any other exit code than 0; a run whose command was
    killed resumes, like one whose own process was.
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
        told = f"the command ended with {how}: {expanded(command, values)}"
        raise TrainerFailed(told, errors.traceback(), signal=number)
    output = None if begin is None else log.ranges(begin)
    return Ended(printed.metrics, stopped.is_set(), is_python.is_set(), output)


_PYTHON = re.compile(r"(?:^|[\s/'\"=;&|(])(?:i?python|pypy|torchrun|accelerate|deepspeed)[\d.]*(?=$|[\s'\";&|)])")
_SAFE = re.compile(r"[\w/.+@-]+")
_SETS_PATH = re.compile(r"""\bPYTHONPATH=(?!\s|$|[;&|)]|""|'')""")


def _keep_watcher(command: str) -> str:
    """The command with the watcher's folder first in each PYTHONPATH that it sets itself.

    Written as plain text, which means the same inside of any quotes.
    """
    if not _SAFE.fullmatch(WATCH):
        return command
    return _SETS_PATH.sub(f"PYTHONPATH={WATCH}{os.pathsep}", command)


def _chunks(source: int, shell: KeeperProcess) -> Iterator[bytes]:
    """Yield the output of a command in chunks, to its end.

    A process that killed its keeper may hold the pipe open, so nothing is read long after the keeper's end.
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
    """Send SIGTERM to the shell and everything it started when the run shall end. is_python: set once Python runs."""
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
    """Return whether a process below this one is Python's, apart from the keeper, which is a fork of this process."""
    with contextlib.suppress(OSError):
        for pid in descendants():
            if pid != keeper and _program(pid).startswith(("python", "pypy")):
                return True
    return False


def _program(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:  # it has ended, or is another user's
        return ""


def _tell(point: Mapping[str, Any], context: AttemptContext) -> None:
    """Report a printed {"step": 10, "loss": 2.3} as a point of the curve; with "checkpoint": true also a checkpoint."""
    if type(point["step"]) is not int or not 0 <= point["step"] <= LAST_STEP:
        return
    metrics = {name: value for name, value in numbers(point).items() if not isinstance(value, Mapping)}
    if type(point.get("total")) is int and point["step"] <= point["total"]:
        report_progress(context.emit, point["step"], metrics.pop("total"))
    if metrics:
        context.emit("metrics", step=point["step"], metrics=of_point(metrics))
    if point.get("checkpoint") is True:
        context.emit("checkpoint", step=point["step"], path="final")
