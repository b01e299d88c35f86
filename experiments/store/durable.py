"""Write files and folders atomically and durably: write under a temporary name, fsync, then rename.

This module also contains functions that lock, read and remove files safely. It does not import torch.
"""

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO

from experiments.errors import UserError

LONG_S = 12 * 3600.0  # longest wait for a lock in seconds; preparing a corpus may take hours
TELL_AFTER_S = 10.0  # seconds; if a wait for a lock is longer, it is logged
log = logging.getLogger(__name__)

PARTIAL = ".partial"  # suffix of temporary folders; the name of a complete folder never has it


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file durably and atomically: readers see the old file or the new one."""
    with whole_file(path) as stream:
        stream.write(data)


@contextlib.contextmanager
def whole_file(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Write a file under a temporary name, then rename it to `path` once its content is on the disk.

    private: whether to create the file with mode 0600. If False, its mode is 0666 minus the umask.
    """
    name = _beside(path.parent, f".{path.name}.")
    try:
        with os.fdopen(os.open(name, _NEW, 0o600 if private else 0o666), "wb") as stream:
            _mark_as_in_use(stream.fileno())
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
            name.replace(path)  # rename while the file is locked; closing the stream releases the lock
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    fsync_folder(path.parent)


@contextlib.contextmanager
def whole_folder(path: Path, *, replace: bool = False) -> Iterator[Path]:
    """Fill a folder under a temporary name, then rename it to `path` once its content is on the disk.

    With `replace`, an existing `path` is replaced. Without it, an existing `path` stays unchanged.
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
    """Give the file `made` the name `path`. If a file `path` exists, it stays unchanged."""
    try:
        path.hardlink_to(made)
    except FileExistsError:
        return
    except OSError:  # the disk does not support hard links
        if path.exists():
            return
        made.replace(path)
    fsync_folder(path.parent)


@contextlib.contextmanager
def folder_beside(parent: Path, prefix: str, suffix: str = "") -> Iterator[Path]:
    """Create a folder with a new name, and remove it at the end unless it was renamed.

    The mode of the folder follows the umask. Folders of `tempfile` would have mode 0700.
    """
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
    """Lock an open file or folder, so that `sweep` (jobs/coordinator/work.py) does not remove it.

    When a process is killed, the kernel releases its locks. So `sweep` can remove the temporary files of the process.
    """
    with contextlib.suppress(OSError):  # the disk does not support locks
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def _beside(parent: Path, prefix: str, suffix: str = "") -> Path:
    return parent / f"{prefix}{secrets.token_hex(8)}{suffix}"


@contextlib.contextmanager
def locked(root: Path, name: str, limit_s: float = LONG_S) -> Iterator[None]:
    """Let only one process at a time create `root/name`. Remove unfinished files that a killed process has left there.

    Some network disks have no locks. On such a disk, several processes may create `root/name`, and the first process
    that renames its version wins. Raises UserError if another process holds the lock for longer than limit_s.
    """
    path = root / f"{name}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        if take_lock(handle, path, limit_s):
            for left_over in [*root.glob(f".{name}.*{PARTIAL}"), *(root / name).rglob(f".*{PARTIAL}")]:
                remove_folder(left_over)
        yield
    finally:
        os.close(handle)


def take_lock(handle: int, path: Path, limit_s: float) -> bool:
    """Lock an open file until it is closed. Return False on a disk without locks.

    Raises UserError, which names the holder, if another process holds the lock for longer than limit_s.
    """
    begin = time.monotonic()
    told = False
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                return False
        else:
            return True
        waited = time.monotonic() - begin
        if waited > limit_s:
            raise UserError(
                f"{path} has been locked by {_holder(handle)} for {waited:.0f} s, so nothing was written. End that "
                "process or wait for it, then repeat the command."
            )
        if waited > TELL_AFTER_S and not told:
            log.warning("waiting for %s, which is locked by %s; at most %.0f s", path, _holder(handle), limit_s)
            told = True
        time.sleep(min(0.2, 0.002 + waited / 20))


def _holder(handle: int) -> str:
    """Return the process that holds the lock of a file, such as "process 4711"; "another process" if it is unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        inode = os.fstat(handle).st_ino
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            fields = line.split()
            if "FLOCK" in fields and int(fields[5].rpartition(":")[2]) == inode:
                return f"process {fields[4]}"
    return "another process"


def make_once(folder: Path, make: Callable[[Path], None]) -> None:
    """Create a folder by calling `make`, unless it exists. Only one process at a time creates it.

    The folder gets its name after `make` has ended, so a folder with this name is always complete.
    """
    if folder.is_dir():
        return
    with locked(folder.parent, folder.name):
        if not folder.is_dir():
            with whole_folder(folder) as made:
                make(made)


def states_of(files: Iterable[Path]) -> list[tuple[int, int, int] | None]:
    """Return the modification time, size and inode of each file; None for a missing file."""
    states = [file.stat() if file.exists() else None for file in files]
    return [one and (one.st_mtime_ns, one.st_size, one.st_ino) for one in states]


def fsync_folder(folder: Path) -> None:
    """Write the file names in a folder to the disk, so that they survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def regular_files(folder: Path) -> Iterator[Path]:
    """Yield the regular files below a folder.

    A trainer's folder may contain other entries: links, pipes (which may block), sockets, devices. These entries are
    left out, and so is the content of unreadable folders.
    """
    for place, _, names in os.walk(folder):
        paths = (Path(place, name) for name in sorted(names))
        # os.path.isfile also works in a folder that cannot be entered
        yield from (path for path in paths if os.path.isfile(path) and not path.is_symlink())  # noqa: PTH113


def make_folder(root: Path, name: str) -> Path:
    """Make the folder `name` below `root` and return it.

    If a component of the path exists and is not a folder (a link, for example), it is replaced by a folder.
    Raises ValueError for a path that leads out of `root`.
    """
    folder = root
    for part in parts_below(name) if name else ():
        folder = folder / part
        if folder.is_symlink() or not folder.is_dir():
            clear(folder).mkdir()
    return folder


def parts_below(name: str) -> list[str]:
    """Return the parts of a path that stays below its folder. Raise ValueError for any other path."""
    parts = name.split("/")
    if {"", ".", ".."} & {*parts}:
        raise ValueError(f"{name!r} is no path below a folder")
    return parts


def clear(path: Path) -> Path:
    """Remove a file, a link, a pipe, or a folder with its content, and return its path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading. Raise OSError for any other file; a pipe, for example, would block."""
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_regular(path: Path) -> bytes:
    """Return the content of a regular file. Raise OSError for any other file."""
    with open_regular(path) as stream:
        return stream.read()


def fsync_tree(folder: Path) -> None:
    """Fsync a folder, and all folders and regular files below it. Skip files that this user may not read."""
    for path in regular_files(folder):
        with contextlib.suppress(PermissionError, FileNotFoundError), path.open("rb") as file:
            os.fsync(file.fileno())
    for place, _, _ in os.walk(folder):
        fsync_folder(Path(place))


def remove_folder(folder: Path) -> None:
    """Delete a folder. Ignore errors, because the folder may be partly deleted already."""
    shutil.rmtree(folder, ignore_errors=True)


def discard(folder: Path) -> None:
    """Delete a folder. The folder is renamed first, so that a partly deleted folder never looks complete."""
    remove_folder(folder.rename(folder.with_name(f".{folder.name}{PARTIAL}")))


def link(source: Path, target: Path) -> None:
    """Create `target` as a hard link to `source`, or as a copy if the disk does not support hard links.

    The content of `source` must not change afterwards.
    """
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copyfile(source, target)
