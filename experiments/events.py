"""A run's events: one JSON object a line, appended by the child, tailed by the coordinator. The truth of a run.

Every event has "t" (Unix seconds; differences are durations, clock.py) and "kind"; the rest depends on the kind:

    started     attempt, pid, host, device, threads, code_digest, members
    resumed     step, path, run                 training goes on at this step, of a checkpoint that `run` has made
    metrics     step, loss, …                   numbers of the training curve
    progress    what, done, total               of what has no steps; at most one a second
    checkpoint  step, path                      saved and durable
    trained     step                            weights are in the attempt's folder
    evaluated   eval_id, set, metrics
    finished
    preempted   step                            stopped on request, after a checkpoint
    failed      cls, message, traceback         cls: out_of_memory | disk_full | diverged | user_error | bug
"""

import json
import math
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments import clock

FILE = "events.jsonl"
FOR_THE_EYE = ("metrics", "progress")
PROGRESS_EVERY_S = 1.0


def _plain(value: Any) -> Any:
    """JSON knows no NaN or infinity: they are written as strings, so that every line stays valid JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


class EventWriter:
    """Appends events to `<folder>/events.jsonl`: one write call a line, so that a kill tears at most the last."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._progress_at = 0.0
        self._torn = False
        self._turn = threading.Lock()  # a checkpoint is told by the thread that wrote it

    def emit(self, kind: str, **fields: Any) -> None:
        if kind == "progress":
            if time.monotonic() - self._progress_at < PROGRESS_EVERY_S:
                return
            self._progress_at = time.monotonic()
        event = {"t": round(clock.now(), 3), "kind": kind, **_plain(fields)}
        with self._turn:
            self._append((json.dumps(event, ensure_ascii=False, allow_nan=False) + "\n").encode())
        if kind not in FOR_THE_EYE:  # what a restart relies on must survive a power cut
            os.fsync(self._file)

    def _append(self, line: bytes) -> None:
        """One write; on a disk that is nearly full it may be cut short, and the rest then raises OSError."""
        line = b"\n" + line if self._torn else line  # a torn line must not swallow the next one
        self._torn = True
        written = os.write(self._file, line)
        while written < len(line):
            written += os.write(self._file, line[written:])
        self._torn = False

    def close(self) -> None:
        os.close(self._file)


class Tail:
    """Reads a growing event file: each call gives the complete lines since the last one."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        end = data.rfind(b"\n") + 1
        self._offset += end
        return list(_parse(data[:end]))


def read_events(folder: Path) -> list[dict[str, Any]]:
    """All complete events of an attempt; empty if it never started."""
    return Tail(folder).read()


def _parse(data: bytes) -> Iterator[dict[str, Any]]:
    for line in data.split(b"\n"):
        if not line.strip():
            continue
        try:
            event = json.loads(line)
        except ValueError:  # a line torn by a kill, completed by the next attempt to write: skip it
            continue
        if isinstance(event, dict) and "kind" in event:
            yield event
