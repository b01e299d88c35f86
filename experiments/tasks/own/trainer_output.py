"""Copy the output of a trainer to the attempt's log, and find the metrics of a command in it.

A log keeps the beginning and the end of the output. The memory that this module needs is limited for any length of the
output.
"""

import codecs
import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from experiments.errors import UserError

CHUNK = 1 << 16  # bytes per read
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
            with contextlib.suppress(OSError):  # if the disk is full, the trainer's next write to a file fails too
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


def metrics_in_file(file: Path) -> Metrics | None:
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
