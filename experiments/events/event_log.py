"""Write and read the events of an attempt: a file with one JSON object per line.

The child process appends events and the coordinator reads them. lines.py defines the kinds of events and their fields.
Times are Unix seconds from `record_time`. The difference of two times of a process is therefore a duration, even if the
system clock is set in between.

This module does not import torch.
"""

import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from experiments.events.lines import FORMAT, LONGEST_LINE, LineError, decode, encode, past_its_end
from experiments.records import record_time
from experiments.store.layout import Store

FILE = "events.jsonl"
NOT_FSYNCED = ("metrics", "progress")
ENDS = ("finished", "failed", "preempted", "ended")  # kinds of an attempt's last event if its end is known
PROGRESS_EVERY_S = 1.0
LAST_BYTES = 1 << 13  # number of bytes that `last_event` first reads from the end of a file


class EventWriter:
    """A writer that appends events to `<folder>/events.jsonl`.

    It writes each line with one call, so a kill damages at most the last line.
    """

    def __init__(self, folder: Path, used: Callable[[bool], Mapping[str, float]] | None = None) -> None:
        """Open the file. used: returns fields with the resources used so far, for every event (Meter.used)."""
        self._used = used
        self._file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        size = os.fstat(self._file).st_size
        self._head = {} if size else {"format": FORMAT}
        self._torn = size > 0 and os.pread(self._file, 1, size - 1) != b"\n"  # an earlier writer was killed
        self._progress_at = 0.0
        self._turn = threading.Lock()  # the thread that writes checkpoints emits events, too

    def emit(self, kind: str, /, **fields: Any) -> None:
        """Append an event. "progress" events are written at most once per second.

        Raises ValueError if the fields do not fit the kind (lines.py), and OSError if writing fails.
        """
        if kind == "progress":
            if time.monotonic() - self._progress_at < PROGRESS_EVERY_S:
                return
            self._progress_at = time.monotonic()
        used = self._used(kind not in NOT_FSYNCED) if self._used else {}
        with self._turn:
            self._append(encode({**fields, **used, **self._head, "t": round(record_time(), 3), "kind": kind}))
            self._head = {}
        if kind not in NOT_FSYNCED:  # a restart relies on these events, so they must survive a power cut
            os.fsync(self._file)

    def _append(self, line: bytes) -> None:
        """Write a line. If the disk is full, remove the incomplete line and raise OSError."""
        line = b"\n" + line if self._torn else line
        written = 0
        try:
            while written < len(line):
                written += os.write(self._file, line[written:])
        except OSError:
            if written:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._file, os.fstat(self._file).st_size - written)
            raise
        self._torn = False

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Tail:
    """A reader of a growing event file. Each call of `read` continues where the last one stopped.

    A last line without a newline is left for the next call, because the writer is still writing or was killed.

    offset: byte position of the next event.
    damaged: number of damaged lines that were skipped so far.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE
        self.offset = self.damaged = 0
        self._within_too_long = False

    def damage(self, root: Path) -> str:
        """Return a message about the skipped lines; "" if there are none."""
        lines = "1 damaged line was" if self.damaged == 1 else f"{self.damaged} damaged lines were"
        return f"{lines} skipped in {os.path.relpath(self.path, root)}" if self.damaged else ""

    def read(self, until: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield the complete events since the last call, oldest first.

        until: position in the file, in bytes, at which reading ends; None reads to the end of the file.
        """
        try:
            file = open(self.path, "rb", opener=_without_waiting)  # noqa: SIM115
        except FileNotFoundError:
            return
        except OSError:  # the path is a folder, or permission is denied
            self.damaged = max(1, self.damaged)
            return
        with file:
            if not file.seekable():  # the path is a pipe
                return
            file.seek(self.offset)
            while (until is None or self.offset < until) and (line := self._line(file)):
                try:
                    event = decode(line) if line.strip() else None
                except LineError:
                    self.damaged += 1
                    continue
                if event is not None:
                    yield event

    def _line(self, file: IO[bytes]) -> bytes:
        """Return the next complete line of at most LONGEST_LINE bytes, or b"" at the end of the file."""
        while True:
            line = file.readline(LONGEST_LINE)
            whole = line.endswith(b"\n")
            if not whole and len(line) < LONGEST_LINE and not self._within_too_long:
                if past_its_end(line):
                    self.offset += len(line)
                    self.damaged += 1
                return b""
            self.offset += len(line)
            if whole and not self._within_too_long:
                return line
            if not line:
                return b""
            self.damaged += not self._within_too_long
            self._within_too_long = not whole


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def last_event(folder: Path, having: str = "kind") -> dict[str, Any] | None:
    """Return the last readable event that has the field `having`, or None. The function reads the file from its end."""
    try:
        with open(folder / FILE, "rb", opener=_without_waiting) as file:
            size, window = file.seek(0, os.SEEK_END), LAST_BYTES
            while True:
                begin = max(0, size - window)
                file.seek(begin)
                lines = file.read(size - begin).split(b"\n")[begin > 0 : -1]  # keep only complete lines
                for line in reversed(lines):
                    with contextlib.suppress(LineError):
                        event = decode(line + b"\n") if line.strip() else None
                        if event is not None and having in event:
                            return event
                if not begin:
                    return None
                window *= 8
    except OSError:
        return None


def read_events(folder: Path) -> list[dict[str, Any]]:
    """Return all complete events of an attempt, or [] if it never started."""
    return list(Tail(folder).read())


# (run_id, attempt) → (fingerprint of its events, number of damaged lines)
Known = Mapping[tuple[str, int], tuple[str, int]]


def damaged_events(store: Store, known: Known | None = None) -> Iterator[tuple[str, int, str]]:
    """Yield (run_id, attempt, message) for every event file with damaged lines.

    Files whose fingerprint is `known` are not read again, because a store may have 10,000 files.
    """
    for run_id in store.run_ids():
        for attempt in store.attempts(run_id):
            tail = Tail(store.attempt_folder(run_id, attempt))
            content = content_of(tail.path.parent)
            before, tail.damaged = (known or {}).get((run_id, attempt), ("", 0))
            if content != before:
                tail.damaged = _damaged(tail.path.parent, content)
            if tail.damaged:
                yield run_id, attempt, tail.damage(store.root)


def content_of(folder: Path) -> str:
    """Return a fingerprint (size and modification time) of an attempt's events, or "" if there are none."""
    try:
        about = (folder / FILE).stat()
    except OSError:
        return ""
    return f"{about.st_size}-{about.st_mtime_ns}"


@functools.cache
def _damaged(folder: Path, _content: str) -> int:
    """Return the number of damaged lines, cached by fingerprint because `status --watch` needs it repeatedly."""
    tail = Tail(folder)
    for _ in tail.read():
        pass
    return tail.damaged
