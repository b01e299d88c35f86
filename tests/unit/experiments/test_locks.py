"""Only one coordinator works at a time, whatever its state folder. Reading its identity does not disturb it."""

import errno
import fcntl
import json
import multiprocessing
import os
import socket
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.processes.process_identity import identify
from experiments.store import locks
from experiments.store.layout import Store

FORK = multiprocessing.get_context("fork")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PATIENCE_S", "SETTLE_S"):
        monkeypatch.setattr(locks, name, 0.05)


def test_a_second_coordinator_is_refused_whatever_its_state_folder(tmp_path: Path) -> None:
    stores = [Store.open(tmp_path / "s", state) for state in (None, tmp_path / "one", tmp_path / "two")]
    for first in stores:
        for second in stores:
            with first.coordinator_lock():
                with pytest.raises(UserError, match=rf"worked on by process {os.getpid()} on .*--state-dir"):
                    second.coordinator_lock().__enter__()
                assert second.coordinator() == f"process {os.getpid()} on {socket.gethostname()}"
            assert first.coordinator() == second.coordinator() == ""


def test_a_state_folder_that_is_a_link_to_the_store_is_one_folder(tmp_path: Path) -> None:
    Store.open(tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    with Store.open(tmp_path / "s", tmp_path / "link").coordinator_lock():
        pass


@pytest.mark.process
def test_asking_who_works_refuses_nobody_who_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "PATIENCE_S", 60.0)
    store, enough = Store.open(tmp_path / "s"), FORK.Event()
    asking = [FORK.Process(target=_ask, args=(store, enough)) for _ in range(2)]
    for process in asking:
        process.start()
    try:
        for _ in range(20):  # where one exclusive lock served both, the first or second was refused
            with store.coordinator_lock():
                pass
    finally:
        enough.set()
        for process in asking:
            process.join()


def _ask(store: Store, enough: Event) -> None:
    while not enough.is_set():
        store.coordinator()


@pytest.mark.process
def test_a_new_store_may_be_opened_by_many_at_once(tmp_path: Path) -> None:
    for number in range(5):
        together, problems = FORK.Barrier(8), FORK.SimpleQueue()

        def one(root: Path) -> None:
            together.wait()  # noqa: B023
            try:
                Store.open(root)
                problems.put("")  # noqa: B023
            except UserError as error:
                problems.put(str(error))  # noqa: B023

        openers = [FORK.Process(target=one, args=(tmp_path / str(number),)) for _ in range(8)]
        for process in openers:
            process.start()
        assert [problems.get() for _ in openers] == [""] * 8
        for process in openers:
            process.join()


@pytest.fixture(params=["no locks", "locks of this machine alone"])
def poor_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "no locks":

        def refuse(file: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", refuse)
    monkeypatch.setattr(locks, "_locks_are_local", lambda folder: True)


@pytest.mark.usefixtures("poor_disk")
def test_without_locks_the_name_in_the_file_decides(tmp_path: Path) -> None:
    store, other = Store.open(tmp_path / "s"), Store.open(tmp_path / "s", tmp_path / "state")
    with store.coordinator_lock():
        with pytest.raises(UserError, match="worked on by process"):
            other.coordinator_lock().__enter__()
        assert other.coordinator().startswith("process")
    with store.coordinator_lock():  # the name went with its holder
        pass
    named = {**identify(os.getpid()), "host": socket.gethostname()}
    file = store.root / locks.FILE
    file.write_text(f"process 7 on here\n{json.dumps({**named, 'start_ticks': 0})}\n")
    with store.coordinator_lock():  # a holder of this machine that was killed
        pass
    file.write_text(f"process 7 on elsewhere\n{json.dumps({**named, 'host': 'elsewhere'})}\n")
    with pytest.raises(UserError, match=f"process 7 on elsewhere.*delete {file}"):
        store.coordinator_lock().__enter__()
