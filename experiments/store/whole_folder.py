"""Folders that appear whole or not at all, and a lock beside them. Imports no torch."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from experiments.store.layout import folder_beside, fsync_folder, remove_folder


@contextlib.contextmanager
def locked(root: Path, name: str) -> Iterator[None]:
    """One process at a time makes `root/name`; what a killed one left half-made is swept away.

    Where the filesystem knows no locks (some network disks) nothing is held: then the first rename wins.
    """
    with (root / f"{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield
            return
        for left_over in root.rglob(f".{name}.*.part"):
            remove_folder(left_over)
        yield


def make_folder(final: Path, lock_name: str, make: Callable[[Path], None]) -> None:
    """Let `make` fill a folder of another name, bring it to the disk, then rename it to `final`.

    If `final` is there already, or somebody else's is there first, it stays as it is.
    """
    if final.is_dir():
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(final.parent, f".{lock_name}.", ".part") as part:
        make(part)
        _fsync_all(part)
        try:
            part.rename(final)
        except OSError:
            if not final.is_dir():
                raise
        fsync_folder(final.parent)


def _fsync_all(folder: Path) -> None:
    for place, _, files in os.walk(folder):
        for name in files:
            with (Path(place) / name).open("rb") as file:
                os.fsync(file.fileno())
        fsync_folder(Path(place))
