"""Which journal an SQLite file may use where it lies."""

from pathlib import Path
from typing import Any

import psutil

NETWORK = (
    "nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "glusterfs", "fuse.gluster", "fuse.sshfs",
)  # fmt: skip


def journal_mode(folder: Path) -> str:
    """WAL, where readers and a writer do not wait for each other; DELETE on network disks.

    WAL keeps an index in shared memory, which processes on two machines do not have; the rollback journal works there,
    with one writer at a time.
    """
    return "DELETE" if on_network(folder) else "WAL"


def on_network(folder: Path) -> bool:
    """Whether a folder lies on a network disk, by its mount's type; False where that cannot be told."""
    mount = mount_of(folder)
    return mount is not None and mount.fstype.startswith(NETWORK)


def mount_of(folder: Path) -> Any:
    """The mount that a folder lies on, with `fstype` and `opts`; None where that cannot be told."""
    folder = folder.resolve()
    mounts = [p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda p: len(p.mountpoint), default=None)
