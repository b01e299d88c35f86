"""A wall around a user's trainer: what it may not read is hidden, and what it may not change is read-only.

The process enters a mount namespace of its own, and then a second one within a second user namespace: from there it
cannot undo the mounts of the first, nor reach the files of the processes outside through /proc. Nothing here needs
root. Where a system refuses (containers without user namespaces, other systems than Linux), `holds` says so.
"""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000  # flags of unshare
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18  # flags of mount
_KEPT = 2 | 4 | 8 | 1024 | 2048  # nosuid, nodev, noexec, noatime, nodiratime: the same bits in mount and statvfs
_RELATIME_OF_STATVFS, _RELATIME = 4096, 1 << 21
_LIBRARY = ctypes.CDLL(None, use_errno=True)
NO_WALL = "sealed files are readable by trainers here, and the store can be written by them: no mount namespaces"


@dataclass(frozen=True)
class Wall:
    """Paths that exist. Later ones win: a writable folder lies in a read-only one, a hidden file in either."""

    read_only: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()

    @classmethod
    def around(cls, read_only: Iterable[Path], writable: Iterable[Path], hidden: Iterable[Path]) -> "Wall":
        """A wall of those of the paths that exist; a link stands for where it leads."""
        parts = (read_only, writable, hidden)
        return cls(*(tuple(dict.fromkeys(path.resolve() for path in part if path.exists())) for part in parts))

    def enter(self) -> None:
        """Put the present process, which has one thread, behind the wall. Raises OSError."""
        _unshare()
        _mount("none", "/", _RECURSIVE | _PRIVATE)
        for path in (*self.read_only, *self.writable):
            _mount(path, path, _BIND | _RECURSIVE)
            flags = os.statvfs(path).f_flag
            usual = flags & _KEPT | (_RELATIME if flags & _RELATIME_OF_STATVFS else 0)
            _mount("none", path, _BIND | _REMOUNT | usual | (_READ_ONLY if path in self.read_only else 0))
        for path in self.hidden:
            if path.is_dir():
                _mount("none", path, _READ_ONLY, "tmpfs")
            else:
                _mount(os.devnull, path, _BIND)
        os.chdir(Path.cwd())  # the working directory was that of the mount below
        _unshare()

    def holds(self) -> bool:
        """Whether this system can put a process behind it."""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(["/bin/sh", "-c", ":"], preexec_fn=self.enter).returncode == 0
        return False


def _mount(source: object, target: object, flags: int, kind: str = "") -> None:
    if _LIBRARY.mount(str(source).encode(), os.fsencode(str(target)), kind.encode(), ctypes.c_ulong(flags), None):
        raise OSError(ctypes.get_errno(), f"mount {target}")


def _unshare() -> None:
    """Enter new user and mount namespaces with the same ids. A process that stays outside writes the maps of ids."""
    process, alone = os.getpid(), os.geteuid() != 0
    ids = {"uid_map": os.geteuid(), "gid_map": os.getegid()}
    maps = {name: f"{number} {number} 1" for name, number in ids.items()}
    if not alone:  # root may map all that is mapped where it is
        for name in maps:
            ranges = (line.split() for line in Path("/proc/self", name).read_text().splitlines())
            maps[name] = "\n".join(f"{inside} {inside} {count}" for inside, _, count in ranges)
    begin, go = os.pipe()
    if (helper := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            os.read(begin, 1)
            for name, text in (({"setgroups": "deny"} if alone else {}) | maps).items():
                Path(f"/proc/{process}", name).write_text(text)
            os._exit(0)
        os._exit(1)
    if _LIBRARY.unshare(_NEW_USER | _NEW_MOUNTS):
        error = ctypes.get_errno()
        os.kill(helper, 9)
        os.waitpid(helper, 0)
        raise OSError(error, "unshare")
    os.write(go, b"1")
    for end in (begin, go):
        os.close(end)
    if os.waitpid(helper, 0)[1]:
        raise OSError("the maps of ids could not be written")
