"""Event files with damaged lines, over a whole store. Imports no torch."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path

from experiments.events.event_log import FILE, Tail
from experiments.store.layout import Store

Known = Mapping[tuple[str, int], tuple[str, int]]  # run_id and attempt → content of its events, damaged lines


def damaged_events(store: Store, known: Known | None = None) -> Iterator[tuple[str, int, str]]:
    """(run_id, attempt, a line for people) of every event file in which lines had to be passed over.

    Files whose content is `known` are not read again: a store may have 10,000.
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
    """What changes when an attempt's events change; "" if there are none."""
    try:
        about = (folder / FILE).stat()
    except OSError:
        return ""
    return f"{about.st_size}-{about.st_mtime_ns}"


@functools.cache
def _damaged(folder: Path, _content: str) -> int:
    """Read once per content: `status --watch` asks every two seconds."""
    tail = Tail(folder)
    for _ in tail.read():
        pass
    return tail.damaged
