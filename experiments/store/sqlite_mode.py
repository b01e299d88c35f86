"""The journal mode of an SQLite file, by the type of its disk."""

from pathlib import Path
from typing import Any

import psutil

NETWORK = (
    "nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "glusterfs", "fuse.gluster", "fuse.sshfs",
)  # fmt: skip


def journal_mode(folder: Path) -> str:
    """WAL, where readers and a writer do not block each other; DELETE on network disks.

    WAL keeps an index in shared memory, which two machines do not have in common. The rollback journal works there,
    with one writer at a time.
    """
    return "DELETE" if on_network(folder) else "WAL"


def on_network(folder: Path) -> bool:
    """Return whether a folder is on a network disk, by the type of its mount; False if unknown."""
    mount = mount_of(folder)
    return mount is not None and mount.fstype.startswith(NETWORK)


def mount_of(folder: Path) -> Any:
    """The mount that contains a folder, with `fstype` and `opts`; None if unknown."""
    folder = folder.resolve()
    mounts = [p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda p: len(p.mountpoint), default=None)
