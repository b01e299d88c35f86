"""The coordinator keeps a store's budget after kills, retries and changes of the budget, with a stub child."""

import os
import time

import pytest

from experiments.errors import UserError
from experiments.events.event_log import EventWriter
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store import budget, ledger
from experiments.store.budget import BUDGET, HOUR, Account
from experiments.store.layout import Store

from .stub_store import SLOTS, assert_whole, go, in_thread, make, row, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "s")


def limit(store, allowed="", **limits):
    ledger.append(store, "budget", limits=limits, allowed=allowed)


def ends(store):
    return [entry for entry in ledger.entries(store) if entry["what"] == "end"]


def test_runs_beyond_the_budget_wait_with_the_reason_until_it_is_raised(store):
    limit(store, runs=2)
    summary = go(store, *map(make, range(1, 5)), slots=SLOTS[:1])
    assert (summary.finished, summary.left) == (2, 2)
    waiting = [n for n in range(1, 5) if row(store, n).state is State.WAITING]
    assert len(waiting) == 2 and all(row(store, n).held.startswith(f"{BUDGET} of 2 runs") for n in waiting)
    limit(store, runs=4)
    assert go(store).left == 2  # a line without the right to raise the budget has no effect
    limit(store, allowed="any", runs=4)
    assert go(store).finished == 2 and not ledger.damaged(store)


def test_a_retry_is_no_other_run_but_its_hours_count(store):
    limit(store, runs=1, hours=1.0)
    job = make(1, {"1": {"at": 3, "do": "kill"}, "2": {"at": 4, "do": "bug"}}, step_s=0.05)
    assert go(store, job).failed == 1
    with Queue(store.queue_db) as queue:
        queue.retry([job.run_id])
    assert go(store, make(2)).left == 1
    assert_whole(store, 1)
    assert [entry["outcome"] for entry in ends(store)] == ["killed", "bug", "finished"]
    account = Account(store)
    assert account.spent_s == pytest.approx(sum(entry["seconds"] for entry in ends(store)))
    assert account.spent_s >= 6 * 0.05 and not account.open and account.runs == {job.run_id}


def test_running_attempts_save_a_checkpoint_when_the_hours_are_used_up(store):
    limit(store, hours=6.0 / HOUR)
    assert go(store, make(1, steps=400, step_s=0.05), make(2, steps=400, step_s=0.05)).left == 2
    account = Account(store)
    assert 6.0 <= account.spent_s < 8.0, "both were asked at once"
    assert {entry["outcome"] for entry in ends(store)} == {"preempted"}
    assert all(row(store, n).held.startswith(f"{BUDGET} of") for n in (1, 2))
    limit(store, allowed="any", hours=1.0)
    go(store, make(1, steps=400), make(2, steps=400))  # the same runs without pauses
    assert_whole(store, 1, steps=400), assert_whole(store, 2, steps=400)


def test_a_change_reaches_a_coordinator_that_works(store):
    limit(store, hours=0.0)
    thread = in_thread(store, make(1), until="stopped", slots=SLOTS[:1])
    wait_for(lambda: row(store).held.startswith(BUDGET))
    limit(store, allowed="any", hours=1.0)
    wait_for(lambda: row(store).state is State.FINISHED)
    with Queue(store.queue_db) as queue:
        queue.drain()
    thread.join()


def test_the_time_ends_whatever_the_clock_says(store, monkeypatch):
    boot, now = budget.boot_clock()
    limit(store, until=[time.time() + 1e6, boot, now - 1])  # the clock was set back afterwards
    assert go(store, make(1)).left == 1 and "time has ended" in row(store).held
    limit(store, allowed="none")
    limit(store, until=[time.time() - 1e6, boot, now + 1000])  # the clock was set forward afterwards
    assert go(store, make(1)).finished == 1
    monkeypatch.setattr(budget, "boot_clock", lambda: ("another boot", 0.0))
    assert Account(store).time_left() == pytest.approx(-1e6, abs=60)


def test_what_cannot_fit_waits_and_what_can_starts(store):
    go(store, make(1, step_s=0.1, cost=6.0))  # about ten steps per second
    limit(store, hours=3.0 / HOUR)
    assert go(store, make(2, cost=1e6), make(3, cost=1.0)).left == 1
    assert "but the run needs about" in row(store, 2).held
    assert_whole(store, 3)


def test_an_attempt_counts_though_its_coordinator_and_the_queue_are_gone(store):
    limit(store, hours=1.0)
    Account(store).start(make(1).run_id, 1, 2, True, 0.0)
    folder = store.attempt_folder(make(1).run_id, 1)
    folder.mkdir(parents=True)
    events = EventWriter(folder)
    events.emit("started", attempt=1, after_s=5.0, pid=os.getpid(), host="here", code_digest="")
    events.emit("metrics", step=1, metrics={})
    assert Account(store).open
    go(store)
    account = Account(store)
    assert not account.open and account.spent_s == pytest.approx(10.0, abs=0.2)  # five seconds on two slots
    [end] = ends(store)
    assert end["outcome"] == "lost"


@pytest.mark.parametrize("key", [b'"what"', b'"limits"'])
def test_a_damaged_ledger_starts_nothing(store, key):
    limit(store, runs=1)
    ledger.append(store, "x")
    path = store.root / ledger.FILE
    path.write_bytes(damaged := path.read_bytes().replace(key, b'"other"', 1))
    with pytest.raises(UserError, match="No run is started"):
        go(store, make(1))
    assert row(store).state is State.WAITING and path.read_bytes() == damaged
