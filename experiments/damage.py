"""Event files with damaged lines, over a whole store. Imports no torch."""

import functools
from collections.abc import Iterator
from pathlib import Path

from experiments.events import Tail
from experiments.store import Store


def damaged_events(store: Store) -> Iterator[tuple[str, int, str]]:
    """(run_id, attempt, a line for people) of every event file in which lines had to be passed over."""
    for run_id in store.run_ids():
        for attempt in store.attempts(run_id):
            tail = Tail(store.attempt_folder(run_id, attempt))
            try:
                about = tail.path.stat()
            except OSError:
                continue
            tail.damaged = _damaged(tail.path, about.st_size, about.st_mtime_ns)
            if tail.damaged:
                yield run_id, attempt, tail.damage(store.root)


@functools.cache
def _damaged(path: Path, _size: int, _mtime_ns: int) -> int:
    """Read once per content: `status --watch` asks every two seconds."""
    tail = Tail(path.parent)
    for _ in tail.read():
        pass
    return tail.damaged
