"""Disks that are full or read-only: one clear paragraph, exit code 2. Real ones, where this process may mount them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from .conftest import Cli


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 300 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", place], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no right to mount a disk here: {mounted.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def test_no_space_left(cli: Cli, tiny: Path, disk: Path) -> None:
    options = ["--set", "data.builtin_pairs=20000"]  # some megabytes once encoded
    done = cli("run", tiny, "--store", disk / "store", *options, code=2)
    assert "no space left" in done.stderr and "--store" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (disk / "store").exists()


def test_no_space_left_for_the_table(cli: Cli, tiny: Path, disk: Path, tmp_path: Path) -> None:
    (disk / "old.md").write_text("the old table", encoding="utf-8")
    with (disk / "full").open("wb") as file, pytest.raises(OSError, match="No space left"):
        file.write(bytes(400_000))
    done = cli("report", tiny, "--store", tmp_path / "none", "--out", disk / "old.md", code=2)
    assert "no space left" in done.stderr
    assert (disk / "old.md").read_text(encoding="utf-8") == "the old table"


def test_no_right_to_write(cli: Cli, tiny: Path, disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    done = cli("run", tiny, "--store", disk / "store", code=2)
    assert "read-only" in done.stderr and "--store" in done.stderr
    assert "Traceback" not in done.stderr
