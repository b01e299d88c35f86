"""Every wait for a lock, and every read of a pipe in place of a file, ends with a message."""

import fcntl
import os
import time

import pytest

from experiments.errors import Damaged, UserError
from experiments.jobs.attempts.attempt import log_tail
from experiments.store import ledger
from experiments.store.checksummed import check_file, describe_file, read_json
from experiments.store.durable import locked, read_regular
from experiments.store.layout import LOG, Store


@pytest.fixture
def held(tmp_path):
    """Lock a file as a trainer may do."""
    handles = []

    def hold(path):
        handles.append(os.open(path, os.O_RDWR | os.O_CREAT))
        fcntl.flock(handles[-1], fcntl.LOCK_EX)

    yield hold
    for handle in handles:
        os.close(handle)


def test_a_lock_that_another_process_keeps_is_named_with_it(tmp_path, held):
    held(tmp_path / "corpus.lock")
    begin = time.monotonic()
    with (
        pytest.raises(UserError, match=rf"corpus\.lock has been locked by process {os.getpid()} "),
        locked(tmp_path, "corpus", 0.3),
    ):
        pass
    assert 0.3 <= time.monotonic() - begin < 30


def test_a_locked_ledger_ends_the_command(tmp_path, held, monkeypatch):
    store = Store.open(tmp_path / "store")
    ledger.append(store, "request", verb="run")
    monkeypatch.setattr(ledger, "LOCKED_S", 0.2)
    before = (store.root / ledger.FILE).read_bytes()
    held(store.root / ledger.FILE)
    with pytest.raises(UserError, match=rf"ledger\.jsonl has been locked by process {os.getpid()} "):
        ledger.append(store, "request", verb="run")
    assert (store.root / ledger.FILE).read_bytes() == before


def test_a_free_lock_is_taken_and_given_back(tmp_path):
    for _ in range(2):
        (tmp_path / ".corpus.x.partial").mkdir()
        with locked(tmp_path, "corpus", 0.0):
            assert not (tmp_path / ".corpus.x.partial").exists()


def test_pipes_in_place_of_files_are_not_waited_for(tmp_path):
    store = Store.open(tmp_path / "store")
    for name in ("record.json", LOG, "plain"):
        os.mkfifo(tmp_path / name)
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "plain")
    with pytest.raises(UserError, match="not a regular file"):
        read_json(tmp_path / "record.json")
    with pytest.raises(OSError, match="not a regular file"):
        describe_file(tmp_path / "plain")
    with pytest.raises(Damaged, match="not a regular file"):
        check_file(tmp_path / "plain", {"bytes": 0, "sha256": ""})
    assert log_tail(store, tmp_path) == ""
    os.mkfifo(store.root / ledger.FILE)
    with pytest.raises(UserError, match="not a regular file"):
        ledger.entries(store)
