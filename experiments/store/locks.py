"""The coordinator's lock: a file in the store, and a second file in the state folder if it is a separate folder.

The lock is an flock. The kernel releases it when its holder ends for any reason. Some network disks have no locks, or
have locks that other machines do not see. Therefore the holder also writes its process and machine into the file, and
removes this text when it ends. On a disk without visible locks, this text shows which process holds the lock.
"""

import contextlib
import errno
import fcntl
import json
import os
import random
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.processes.process_identity import identify, is_alive
from experiments.store.durable import read_regular

FILE = "coordinator.lock"
PATIENCE_S = 1.0  # seconds during which a failed lock is tried again, because `holder` takes the lock for an instant
SETTLE_S = 1.0  # seconds to wait after writing the file; if two processes wrote it, one then reads the other's name
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)
_LOCAL = {"nolock", "local_lock=all", "local_lock=flock", "localflock", "nobrl"}  # mount options (NFS, Lustre, SMB)


class Occupied(UserError):  # noqa: N818 - the state of the store
    """Error if another coordinator works on the store."""


def holder(folders: Iterable[Path]) -> str:
    """Return the process that holds the lock of one of the folders, such as "process 4711 on host"; "" if none does."""
    for folder in _distinct(folders):
        try:
            file = os.open(folder / FILE, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            taken, seen_by_all = False, not _locks_are_local(folder)
        except OSError as error:
            taken, seen_by_all = error.errno in _TAKEN, False
        finally:
            os.close(file)
        if taken or (not seen_by_all and _lives(_identity(folder))):
            return _name(folder)
    return ""


def held_by_other(folder: Path) -> str:
    """Return the process that holds the lock of a folder; "" if no process or this process holds it."""
    mine = {**identify(os.getpid()), "host": socket.gethostname()}
    return "" if _identity(folder) == mine else holder([folder])


@contextlib.contextmanager
def hold(folders: Iterable[Path]) -> Iterator[None]:
    """Hold the locks of the folders during a `with` block.

    Raises UserError, which names the holder, if another process holds one of the locks.
    """
    with contextlib.ExitStack() as stack:
        for folder in _distinct(folders):
            stack.enter_context(_hold(folder))
        yield


@contextlib.contextmanager
def _hold(folder: Path) -> Iterator[None]:
    file = os.open(folder / FILE, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        seen_by_all = _lock(file, folder)
        mine = {**identify(os.getpid()), "host": socket.gethostname()}
        if not seen_by_all and _lives(_identity(folder)):  # the process that the file names may still be running
            advice = (
                " Locks on this disk are not visible to other machines: if that process was killed, delete "
                f"{folder / FILE}."
            )
            raise _held(folder, advice)
        os.ftruncate(file, 0)
        os.pwrite(file, f"process {os.getpid()} on {mine['host']}\n{json.dumps(mine)}\n".encode(), 0)
        os.fsync(file)
        if not seen_by_all:
            time.sleep(SETTLE_S)
            if _identity(folder) != mine:
                raise _held(folder)
        try:
            yield
        finally:
            os.ftruncate(file, 0)
    finally:
        os.close(file)


def _distinct(folders: Iterable[Path]) -> Iterable[Path]:
    """Return each folder once, because a process that locks a folder twice would wait for itself."""
    return dict.fromkeys(folder.resolve() for folder in folders)


def _lock(file: int, folder: Path) -> bool:
    """Lock the file and return whether other machines see the lock. Raise UserError if another process holds it."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return False
            if error.errno not in _TAKEN:
                raise
            if time.monotonic() > until:
                raise _held(folder) from None
            time.sleep(random.uniform(0.005, 0.02))
        else:
            return not _locks_are_local(folder)


def _held(folder: Path, more: str = "") -> Occupied:
    return Occupied(
        f"{folder} is already worked on by {_name(folder)}. Only one coordinator at a time works on a store, whatever "
        "its --state-dir: wait for it or stop it; `ablations queue` adds runs at any time, `ablations status` watches."
        f"{more}"
    )


def _lines(folder: Path) -> list[str]:
    try:
        return read_regular(folder / FILE)[:1000].decode(errors="replace").splitlines()
    except OSError:
        return []


def _name(folder: Path) -> str:
    return next(iter(_lines(folder)), "") or "another process"


def _identity(folder: Path) -> Mapping[str, Any] | None:
    """Return the process identity that the holder wrote into the file; None if there is none."""
    with contextlib.suppress(ValueError):
        for line in _lines(folder)[1:]:
            found = json.loads(line)
            return found if isinstance(found, dict) and "pid" in found else None
    return None


def _lives(identity: Mapping[str, Any] | None) -> bool:
    """Return whether a process may be alive. A process on another machine is assumed to be alive."""
    return identity is not None and (identity.get("host") != socket.gethostname() or is_alive(identity))


def _locks_are_local(folder: Path) -> bool:
    from experiments.store.sqlite_mode import mount_of  # imported late, because a bare GPU machine may lack psutil

    mount = mount_of(folder)
    return mount is not None and bool(_LOCAL & set(mount.opts.split(",")))
