"""Dangling links, pipes and sockets in a trainer's folder do not lose a finished training."""

import ctypes
import os
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.attempt_context import AttemptContext
from experiments.device_spec import DeviceSpec
from experiments.errors import Preempted, UserError
from experiments.run_spec import RunSpec, TrainerSpec
from experiments.store.retention import remove, size
from experiments.store.spec import AttemptSpec
from experiments.tasks.load import load_task
from experiments.tasks.own import command
from experiments.tasks.own.context import close_folder, new_checkpoint, open_folder

ODD: dict[str, Callable[[Path], Any]] = {
    "a dangling link": lambda folder: (folder / "last.ckpt").symlink_to("gone.ckpt"),
    "a link to itself": lambda folder: (folder / "loop").symlink_to("loop"),
    "a link to its own folder": lambda folder: (folder / "up").symlink_to("."),
    "a link to a device": lambda folder: (folder / "zero").symlink_to("/dev/zero"),
    "a pipe": lambda folder: os.mkfifo(folder / "pipe"),
    "a device": lambda folder: os.mknod(folder / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "a socket": lambda folder: os.mknod(folder / "socket", stat.S_IFSOCK | 0o600),
    "an unreadable file": lambda folder: (folder / "secret").touch(mode=0),
    "an unreadable folder": lambda folder: (folder / "closed").mkdir(mode=0),
    "a folder that cannot be entered": lambda f: ((f / "in/in").mkdir(parents=True), (f / "in").chmod(0o400)),
}  # fmt: skip
CLOSED = list(ODD)[-3:]


@pytest.fixture(autouse=True)
def _as_an_ordinary_user_who_does_not_wait() -> Iterator[None]:
    """Run without root's rights to read every file (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH).

    A call that blocks fails.
    """
    libc, header, rights = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, rights)
    before, rights[0] = rights[0], rights[0] & ~0b110
    libc.capset(header, rights)
    former = signal.signal(signal.SIGALRM, lambda *_: pytest.fail("it blocks"))
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, former)
    rights[0] = before
    libc.capset(header, rights)


def context(folder: Path, *earlier: Path) -> AttemptContext:
    folder.mkdir(exist_ok=True)
    attempt = AttemptSpec(RunSpec("a" * 16, {}, {}), str(folder), 1, DeviceSpec(), earlier=tuple(map(str, earlier)))
    return AttemptContext(attempt, folder, lambda *_, **__: None, lambda: False)


@pytest.mark.parametrize("make", ODD.values(), ids=ODD.keys())
def test_what_lies_in_a_trainers_folder_loses_no_training(tmp_path: Path, make: Callable[[Path], Any]) -> None:
    def fill(folder: Path) -> None:
        (folder / "weights").write_bytes(b"weights")
        try:
            make(folder)
        except PermissionError:
            pytest.skip("only root makes a device")

    one, final = context(tmp_path / "one"), tmp_path / "one" / "final"
    open_folder(one)
    fill(final)
    (final / "examples").mkdir()
    fill(final / "examples")
    with new_checkpoint(one, 1) as folder:
        fill(folder)
    resume = open_folder(context(tmp_path / "two", tmp_path / "one"))
    assert resume is not None and (resume / "weights").read_bytes() == b"weights"
    assert list(close_folder(one)["example_files"]) == ["weights"]
    assert size([final]) == 2 * (final / "weights").stat().st_blocks * 512
    remove([final])
    assert not final.exists()


def test_a_resumed_command_finds_its_folder_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer links to its newest checkpoint, also by absolute paths.

    Entries that cannot be copied are skipped or named.
    """
    task = load_task("command", str(tmp_path)).with_settings({}, TrainerSpec("true"))
    open_folder(context(tmp_path / "one"))
    home = tmp_path / "one" / "final"
    (home / "sub").mkdir()
    (home / "step-3").write_text("3")
    links = {"last": "step-3", "sub/up": "../step-3", "absolute": home / "step-3", "out": tmp_path, "gone": "x"}
    for name, end in links.items():
        (home / name).symlink_to(end)
    for name, make in ODD.items():
        if name not in (*CLOSED, "a device"):
            make(home)
    monkeypatch.setattr(command, "run_command", lambda *_: _raise(Preempted(None)))
    with pytest.raises(Preempted):
        task.train(task.config_type(), context(tmp_path / "two", tmp_path / "one"))
    home.rename(tmp_path / "moved")
    copy = tmp_path / "two" / "final"
    assert {(copy / name).read_text() for name in ("last", "sub/up", "absolute")} == {"3"}
    assert (copy / "out").readlink() == tmp_path and (copy / "gone").readlink() == Path("x")
    assert not any((copy / name).exists() for name in ("pipe", "socket"))
    (tmp_path / "moved").rename(home)
    (home / "step-3").chmod(0)
    with pytest.raises(UserError, match=r"permission is denied.*step-3"):
        task.train(task.config_type(), context(tmp_path / "three", tmp_path / "one"))


def _raise(error: Exception) -> None:
    raise error
