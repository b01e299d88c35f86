"""What a trainer prints: copied to its attempt's log, whose begin and end are kept; a command's metrics in it.

All of it in bounded memory, whatever is printed. Imports no torch.
"""

import codecs
import contextlib
import csv
import io
import json
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from experiments.errors import UserError

CHUNK = 1 << 16
HEAD = TAIL = 2 << 20  # bytes of a log: its begin, and of its end this much to twice as much
LONGEST_LINE = 16 << 20  # characters of a line that may have metrics
LAST_LINES = 200  # of the output, where metrics are looked for
_LONGEST_FILE = 64 << 20  # bytes of a file of metrics
_MOST = sys.float_info.max
Metrics = dict[str, Any]


class Log:
    """Where a trainer's output goes: this process's own, which is the attempt's log."""

    def __init__(self) -> None:
        self._file: Path | None = None
        self._turn = threading.Lock()  # standard output and standard error come from two threads
        self._left_out = self._mark = 0  # bytes

    def limit(self, file: Path) -> None:
        """Keep `file` short, if this process's standard error goes there and not to a terminal."""
        if file.exists() and os.path.samestat(file.stat(), os.fstat(2)):
            self._file = file

    def write(self, data: bytes, to: int = 2) -> None:
        """Append to standard output (1) or standard error (2). Raises OSError, for a full disk."""
        with self._turn:
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


class Tail:
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

    tell: called with each JSON object that has a "step".
    """

    def __init__(self, tell: Callable[[dict[str, Any]], None]) -> None:
        self._tell = tell
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._begun: list[str] = []  # parts of the line that is not complete
        self._length = 0
        self._count = self._found_at = 0  # lines
        self._found: Metrics | None = None
        self._last: deque[str] = deque(maxlen=2)  # lines that are not blank

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
        self._last.append(line[:LONGEST_LINE])
        found = _json_object(line)
        if found is None:
            return
        if "step" in found:
            self._tell(found)
        else:
            self._found, self._found_at = numbers(found), self._count

    @property
    def metrics(self) -> Metrics | None:
        """The last JSON object that is no point of the curve, else the last two lines as CSV."""
        if self._found is not None and self._count - self._found_at < LAST_LINES:
            return self._found
        return _csv(*self._last) if len(self._last) == 2 else None


def written(file: Path) -> Metrics | None:
    """The metrics in a file: a JSON object, or CSV, of which the head and the last line count. Raises UserError."""
    if not file.is_file():
        return None
    if file.stat().st_size > _LONGEST_FILE:
        raise UserError(f"The file of metrics has {file.stat().st_size:,} bytes: at most {_LONGEST_FILE:,} are read.")
    text = file.read_text(encoding="utf-8", errors="replace").strip()
    found, lines = _json_object(text), text.splitlines()
    if found is not None:
        return numbers(found)
    return _csv(lines[0], lines[-1]) if len(lines) > 1 else None


def numbers(found: Mapping[str, Any]) -> Metrics:
    """Numbers, and numbers by set; texts, flags and integers beyond a float's range are dropped."""
    wanted = {name: value for name, value in found.items() if name not in ("step", "checkpoint")}
    return {n: v for n, v in wanted.items() if isinstance(v, Mapping | float) or (type(v) is int and abs(v) < _MOST)}


def _json_object(text: str) -> dict[str, Any] | None:
    if len(text) > LONGEST_LINE or not text.lstrip().startswith("{"):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _csv(head: str, line: str) -> Metrics | None:
    """Names and numbers; other cells (a date, a name) are dropped. None if the two lines do not belong together."""
    try:
        names, values = next(csv.reader([head])), next(csv.reader([line]))
    except csv.Error:  # a cell that is too long
        return None
    if len(names) != len(values) or any(_is_number(name) for name in names):
        return None
    return {n.strip(): float(v) for n, v in zip(names, values, strict=True) if _is_number(v)} or None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
