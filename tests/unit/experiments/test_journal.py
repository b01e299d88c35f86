"""The journal mode of SQLite files depends on the kind of disk."""

from types import SimpleNamespace

import psutil
import pytest

from experiments.store.sqlite_mode import journal_mode


@pytest.mark.parametrize(
    ("kind", "mode"), [("ext4", "WAL"), ("nfs4", "DELETE"), ("lustre", "DELETE"), ("cifs", "DELETE")]
)
def test_no_wal_on_a_network_disk(tmp_path, monkeypatch, kind, mode):
    mounts = [
        SimpleNamespace(mountpoint="/", fstype="ext4"),
        SimpleNamespace(mountpoint=str(tmp_path), fstype=kind),
        SimpleNamespace(mountpoint=str(tmp_path) + "-beside", fstype="nfs4"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)  # noqa: A006
    assert journal_mode(tmp_path / "store") == mode
