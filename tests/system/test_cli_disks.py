"""Full and read-only disks give one clear paragraph and exit code 2.

Real disks are used if this process may mount them.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.child.run import main
from experiments.errors import DiskFull
from experiments.jobs.queue.queue import Queue
from experiments.records import ChildExit
from experiments.store.layout import Store

from .conftest import Cli, command, environment
from .stub_store import make


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk of 300 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount a disk here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


@pytest.fixture
def without_inodes(tmp_path: Path) -> Iterator[Path]:
    """Mount a disk with free space on which no further file can be created."""
    place = tmp_path / "inodes"
    place.mkdir()
    options = "size=10m,nr_inodes=3"  # enough for the root, a folder and a file
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount a disk here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_no_inode_left_for_a_store_or_a_queue(cli: Cli, tiny: Path, without_inodes: Path) -> None:
    done = cli("queue", tiny, "--store", without_inodes / "store", code=2)
    assert "no inode" in done.stderr and "Traceback" not in done.stderr
    with pytest.raises(DiskFull, match="no inode"):
        Queue(without_inodes / "queue.db")


def test_a_child_that_cannot_make_a_file_says_that_the_disk_is_full(without_inodes: Path) -> None:
    (without_inodes / "attempt").mkdir()
    (without_inodes / "attempt" / "spec.json").write_text("{}")
    assert main(without_inodes / "attempt" / "spec.json") == ChildExit.DISK_FULL


def test_no_space_left(cli: Cli, tiny: Path, disk: Path) -> None:
    options = ["--set", "data.builtin_pairs=20000"]  # the encoded corpus has some megabytes
    done = cli("run", tiny, "--store", disk / "store", *options, code=2)
    assert "no space left" in done.stderr and "--store" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (disk / "store").exists()


def test_no_space_left_for_the_table(cli: Cli, tiny: Path, disk: Path, tmp_path: Path) -> None:
    (disk / "old.md").write_text("the old table", encoding="utf-8")
    with (disk / "full").open("wb") as file, pytest.raises(OSError, match="No space left"):
        file.write(bytes(400_000))
    store = Store.open(tmp_path / "store").root
    done = cli("report", tiny, "--store", store, "--out", disk / "old.md", code=2)
    assert "no space left" in done.stderr
    assert (disk / "old.md").read_text(encoding="utf-8") == "the old table"


def test_no_right_to_write(cli: Cli, tiny: Path, disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    done = cli("run", tiny, "--store", disk / "store", code=2)
    assert "read-only" in done.stderr and "--store" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", ["runs", "runs/" + "a" * 16, "queue.db", "store.json", "coordinator.lock"])
def test_a_file_that_may_not_be_read_is_named(cli: Cli, tmp_path: Path, name: str) -> None:
    store = Store.open(tmp_path / "store")
    store.new_attempt("a" * 16)
    queue = Queue(store.queue_db)
    queue.enqueue([make(int("a" * 16, 16))])
    queue.close()
    (store.root / "coordinator.lock").touch()
    (store.root / name).chmod(0)
    words = ["work"] if name == "coordinator.lock" else ["status"]
    if os.getuid() == 0:  # root may read everything
        drop = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"]
        if shutil.which("setpriv") is None or subprocess.run([*drop, "true"]).returncode:
            pytest.skip("this user may read everything")
    else:
        drop = []
    done = subprocess.run(
        [*drop, *command(*words, "--store", store.root)], env=environment(), capture_output=True, text=True
    )
    (store.root / name).chmod(0o755)
    assert done.returncode == 2 and name in done.stderr and "Traceback" not in done.stderr, done.stderr
