"""Temporary files and folders that killed processes left behind; the next coordinator removes them.

A process that creates one holds a lock on it (experiments/store/durable.py). Those created after the coordinator's
start are left alone: their process may not have locked them yet.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Collection, Iterator
from pathlib import Path

from experiments.store import locks
from experiments.store.durable import remove_folder
from experiments.store.layout import Store

_RANDOM = "[0-9a-f]{16}"
_NAME = re.compile(
    rf"\.?(?:mlflow|taking|probe|smoke)-{_RANDOM}|\..+\.{_RANDOM}\.partial|\.step-[0-9]+\.partial"
    rf"|\..+\.(?:json|jsonl|toml|db|npy|txt|diff)\.{_RANDOM}"
)
_INSIDE = (
    *("", "evaluations", "evaluations/*", "attempts", "attempts/*", "attempts/*/evaluations/*"),
    *("attempts/*/checkpoints", "attempts/*/final"),  # of trainers; the names are not ones that they choose
)


def sweep(store: Store, running: Collection[str]) -> int:
    """Remove leftovers and return their number; skips `running` runs, whose children may be on another machine.

    The caller holds the coordinator's lock.
    """
    count = 0
    for folder in _places(store, running):
        began = _began(store, folder)
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and not entry.is_symlink():
                    count += _remove(Path(entry.path), began)
    return count


def _places(store: Store, running: Collection[str]) -> Iterator[Path]:
    yield from dict.fromkeys((store.root, store.state_dir, store.runs, store.corpora, store.root / "tuning"))
    for run in store.runs.glob("[0-9a-f]*"):
        if run.name not in running:
            for inside in _INSIDE:
                yield from run.glob(inside) if inside else (run,)


def _began(store: Store, folder: Path) -> float:
    """Start time of this coordinator, by the clock of the folder's disk."""
    home = store.root if folder.is_relative_to(store.root) else store.state_dir
    return (home / locks.FILE).stat().st_mtime


def _remove(path: Path, before: float) -> bool:
    """Remove a leftover; False if it is new, or locked by a living process."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(handle).st_mtime >= before:
                return False
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                remove_folder(path)
            else:
                path.unlink()
            return True
        finally:
            os.close(handle)
    return False
