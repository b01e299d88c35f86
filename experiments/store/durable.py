"""Files and folders that are whole or not there: made under another name, brought to the disk, renamed.

Imports no torch.
"""

import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

PARTIAL = ".partial"  # the end of a name that no whole folder has


def write_bytes(path: Path, data: bytes) -> None:
    """Write durably: readers see the old file or the new one."""
    with whole_file(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name beside, which becomes `path` when all of it is on the disk.

    Its mode is what the umask leaves of rw-rw-rw-; `private`: for its owner alone, from the first byte.
    """
    name = _beside(path.parent, f".{path.name}.")
    try:
        with os.fdopen(os.open(name, _NEW, 0o600 if private else 0o666), "wb") as stream:
            _mark_as_in_use(stream.fileno())
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            name.replace(path)  # before the lock goes with the stream
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill a folder of another name, which becomes `path` when all of it is on the disk.

    If `path` is there by then, it is replaced, or without `replace` stays as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with folder_beside(path.parent, f".{path.name}.", PARTIAL) as part:
        yield part
        fsync_tree(part)
        if replace:
            remove_folder(path)
        try:
            part.rename(path)
        except OSError:
            if replace or not path.is_dir():
                raise
        fsync_folder(path.parent)


def name_new(made: Path, path: Path) -> None:
    """Give a file its name, unless there is one of that name by now: then that one stays."""
    try:
        path.hardlink_to(made)
    except FileExistsError:
        return
    except OSError:  # a disk without hard links
        if path.exists():
            return
        made.replace(path)
    fsync_folder(path.parent)


@contextlib.contextmanager
def folder_beside(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """A folder of a new name, gone afterwards unless it was renamed. Its mode is the umask's; tempfile's is 0700."""
    folder = _beside(parent, prefix, suffix)
    folder.mkdir()
    handle = os.open(folder, os.O_RDONLY)
    try:
        _mark_as_in_use(handle)
        yield folder
    finally:
        remove_folder(folder)
        os.close(handle)


def _mark_as_in_use(handle: int) -> None:
    """As long as it is open: what nobody has locked was left by a process that was killed (leftovers.py)."""
    with contextlib.suppress(OSError):  # a disk without locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _beside(parent: Path, prefix: str, suffix: str = "") -> Path:
    return parent / f"{prefix}{secrets.token_hex(8)}{suffix}"


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
        for left_over in [*root.glob(f".{name}.*.part*"), *(root / name).rglob(".*.part*")]:
            remove_folder(left_over)
        yield


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_tree(folder: Path) -> None:
    """Bring a folder to the disk with all that it holds."""
    for place, _, files in os.walk(folder):
        for name in files:
            with (Path(place) / name).open("rb") as file:
                os.fsync(file.fileno())
        fsync_folder(Path(place))


def remove_folder(folder: Path) -> None:
    """Delete a folder that may be half gone."""
    shutil.rmtree(folder, ignore_errors=True)


def discard(folder: Path) -> None:
    """Delete a folder. Renamed first: one that is half gone must not look like a whole one."""
    remove_folder(folder.rename(folder.with_name(f".{folder.name}{PARTIAL}")))


def link(source: Path, target: Path) -> None:
    """A second name of a file that will not change any more; a copy where the disk has no hard links."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
