"""If a queue's entry was changed on disk, only that run fails, and queueing it again repairs it."""

import sqlite3

import pytest

from experiments.errors import UserError
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from tests.system.stub_store import go, make, row


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def _change(store, column, old, new, number=1):
    connection = sqlite3.connect(store.queue_db)
    with connection:
        changed = connection.execute(
            f"UPDATE jobs SET {column}=replace({column}, ?, ?) WHERE run_id=?", (old, new, f"{number:016x}")
        )
        assert changed.rowcount == 1
    connection.close()


def _queue(store, *jobs):
    queue = Queue(store.queue_db)
    queue.enqueue(jobs)
    queue.close()


@pytest.mark.parametrize(
    ("column", "old", "new"),
    [("spec", '"train_steps": 6', '"train_steps": 7'), ("spec", '"train"', '"trbin"'), ("pinned", "{", "[")],
)
def test_a_damaged_entry_fails_alone_and_is_mended_by_queueing_it_again(store, column, old, new):
    _queue(store, make(1), make(2))
    if column == "pinned":
        go(store, make(3), make(1))  # the first attempt pins its settings
        _queue(store, make(1, rerun_after=1))
    _change(store, column, old, new)
    summary = go(store)
    assert summary.failed == 1
    failed = row(store, 1)
    assert (failed.state, failed.error_class) == (State.FAILED, "user_error")
    assert "entry of run 0000000000000001 is damaged" in failed.error
    assert row(store, 2).state is State.FINISHED, "the others are not concerned"
    assert go(store, make(1, rerun_after=1 if column == "pinned" else 0)).finished == 1
    assert store.result("0" * 15 + "1").content["sum"] == 21


def test_an_entry_that_moved_to_another_run_is_damaged(store):
    _queue(store, make(1), make(2))
    connection = sqlite3.connect(store.queue_db)
    with connection:
        connection.execute("UPDATE jobs SET spec=(SELECT spec FROM jobs WHERE run_id LIKE '%2') WHERE run_id LIKE '%1'")
    connection.close()
    assert (go(store).failed, row(store, 1).state, row(store, 2).state) == (1, State.FAILED, State.FINISHED)


def test_a_state_that_there_is_none_of_is_one_paragraph(store):
    _queue(store, make(1))
    _change(store, "state", "waiting", "waiuing")
    with pytest.raises(UserError, match=r"The queue .* is damaged .*rebuilt"):
        row(store, 1)


def test_a_torn_file_is_one_paragraph(store):
    _queue(store, *(make(number) for number in range(1, 60)))
    whole = store.queue_db.read_bytes()
    store.queue_db.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match=r"The queue .* is damaged.*no results"):
        go(store)
