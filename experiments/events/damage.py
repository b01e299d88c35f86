"""Find event files with damaged lines in a whole store. Imports no torch."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.events.event_log import FILE, Tail
from experiments.store.layout import Store

Known = Mapping[
    tuple[str, int], tuple[str, int]
]  # (run_id, attempt) → fingerprint of its events, number of damaged lines


def damaged_events(store: Store, known: Known | None = None) -> Iterator[tuple[str, int, str]]:
    """(run_id, attempt, message) of every event file with skipped lines.

    Files whose fingerprint is `known` are not read again: a store may have 10,000.
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
    """A fingerprint (size and time) of an attempt's events; "" if there are none."""
    try:
        about = (folder / FILE).stat()
    except OSError:
        return ""
    return f"{about.st_size}-{about.st_mtime_ns}"


@functools.cache
def _damaged(folder: Path, _content: str) -> int:
    """Number of damaged lines, counted once per fingerprint: `status --watch` calls this every two seconds."""
    tail = Tail(folder)
    for _ in tail.read():
        pass
    return tail.damaged
