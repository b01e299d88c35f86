"""The journal mode of SQLite files, chosen by the filesystem."""

from pathlib import Path
from typing import Any

import psutil

NETWORK = (
    "nfs", "cifs", "smb", "lustre", "gpfs", "beegfs", "ceph", "afs", "9p", "glusterfs", "fuse.gluster", "fuse.sshfs",
)  # fmt: skip


def journal_mode(folder: Path) -> str:
    """Return the journal mode for a folder: DELETE on network disks, otherwise WAL.

    With WAL, readers and a writer do not block each other. WAL needs an index in shared memory, which two machines
    cannot share. DELETE (the rollback journal) works on network disks, with one writer at a time.
    """
    return "DELETE" if on_network(folder) else "WAL"


def on_network(folder: Path) -> bool:
    """Return whether a folder is on a network disk, judged by the type of its mount; False if the mount is unknown."""
    mount = mount_of(folder)
    return mount is not None and mount.fstype.startswith(NETWORK)


def mount_of(folder: Path) -> Any:
    """Return the mount that contains a folder, with `fstype` and `opts`; None if it is unknown."""
    folder = folder.resolve()
    mounts = [p for p in psutil.disk_partitions(all=True) if folder.is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda p: len(p.mountpoint), default=None)
