"""More failures of a stub child (hanging, crashing, a full disk), and draining."""

import json

import pytest

from experiments.errors import DiskFull, UserError
from experiments.jobs.coordinator import admission, attempt_watch
from experiments.jobs.devices import gpu_occupancy, hardware
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import Member, State
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store.checksummed import read_json
from experiments.store.layout import Store

from .stub_store import SLOTS, assert_whole, events, go, in_thread, make, outcomes, resumed_at, row, wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(attempt_watch, "HUNG_GRACE_S", 0.2)


def test_a_run_that_hangs_is_stopped_and_tried_once_more(store, impatient):
    go(store, make(attempts={"1": {"at": 3, "do": "hang"}}), hang_s=8.0)
    assert_whole(store)
    assert outcomes(store) == ["hung", "finished"]
    assert resumed_at(store, 2) == [2]


@pytest.mark.nightly
def test_a_run_that_hangs_again_fails_and_says_so(store, impatient):
    hang = {"at": 3, "do": "hang"}
    summary = go(store, make(1, attempts={"1": hang, "2": hang}), make(2), hang_s=8.0)
    assert (summary.failed, summary.finished) == (1, 1)
    assert outcomes(store) == ["hung", "hung"]
    assert row(store).error_class == "hung" and "--hang-after" in row(store).error


class TestRepeatedFailures:
    """Tests of rows of one table that fail with the same traceback."""

    def test_the_rest_of_the_table_waits_with_the_reason(self, store):
        wrong = {str(n): {"at": 1, "do": "raise"} for n in (1, 2)}
        elsewhere = make(9, members=(Member("other", "p", "c", "9"),))
        summary = go(store, *(make(n, attempts=wrong, cost=9.0 - n) for n in range(1, 7)), elsewhere, slots=SLOTS[:1])
        assert (summary.failed, summary.finished) == (2, 1)
        assert_whole(store, 9)
        waits = [row(store, n) for n in range(3, 7)]
        assert {one.state for one in waits} == {State.WAITING}
        [why] = {one.held for one in waits}
        assert "rows of s failed with the same traceback (1, 2: ZeroDivisionError at" in why
        assert "stub_child.py:" in why and "`ablations retry`" in why
        # The same command queues failed runs again, and does not skip held runs.
        summary = go(store, *(make(n, attempts={}, cost=9.0 - n) for n in (1, 2)), slots=SLOTS[:1])
        assert summary.failed == 2 and row(store, 1).state is State.FINISHED

    def test_retry_releases_them_while_a_coordinator_works(self, store):
        wrong = {"1": {"at": 1, "do": "raise"}}
        jobs = [make(n, attempts=wrong, cost=9.0 - n) for n in (1, 2)] + [make(n, cost=1.0) for n in (3, 4)]
        go(store, *jobs, slots=SLOTS[:1])
        with Queue(store.queue_db) as queue:
            assert queue.held() and queue.retry([make(1).run_id, make(2).run_id]) == 2
            assert queue.held() == []
        assert go(store, slots=SLOTS[:1]).finished == 4

    @pytest.mark.parametrize("do", ["diverged", "out_of_memory"])
    def test_what_a_rows_settings_bring_about_and_what_has_no_traceback_holds_nothing(self, store, do):
        wrong = {str(n): {"at": 1, "do": do} for n in range(1, 20)}
        summary = go(store, *(make(n, attempts=wrong) for n in (1, 2)), make(3), slots=SLOTS[:1])
        assert (summary.failed, summary.finished) == (2, 1)

    def test_seeds_of_one_row_hold_nothing(self, store):
        wrong, mine = {"1": {"at": 1, "do": "raise"}}, (Member("s", "p", "c", "A"),)
        jobs = [make(n, attempts=wrong, members=mine) for n in (1, 2)]
        assert go(store, *jobs, make(3), slots=SLOTS[:1]).finished == 1


def test_a_slow_run_that_steps_is_no_hanging_one(store):
    go(store, make(steps=8, step_s=0.5), hang_s=8.0)
    assert outcomes(store) == ["finished"]


def test_a_crash_in_native_code_is_named(store):
    crash = {str(n): {"at": 1, "do": "segfault"} for n in range(1, 5)}
    go(store, make(1, attempts=crash), make(2, attempts={"1": {"at": 3, "do": "segfault"}}))
    assert "SIGSEGV" in row(store, 1).error and outcomes(store, 1) == ["killed"] * 3
    assert_whole(store, 2)


@pytest.mark.parametrize("what", ["disk_full", pytest.param("mute", marks=pytest.mark.nightly)])
def test_a_full_disk_stops_the_work_and_fails_no_run(store, what):
    jobs = [make(1, attempts={"1": {"at": 3, "do": what}}), make(2, steps=400, step_s=0.02), make(3)]
    with pytest.raises(DiskFull, match="with the same command"):
        go(store, *jobs)
    assert outcomes(store, 1) == ["disk_full"]
    assert [row(store, n).state for n in (1, 2)] == [State.WAITING] * 2
    go(store)
    for number, steps in ((1, 6), (2, 400), (3, 6)):
        assert_whole(store, number, steps)


@pytest.mark.nightly
def test_a_disk_that_was_full_for_the_queue_too_is_not_still_full_for_the_next_coordinator(store, monkeypatch):
    def full(*_):
        raise DiskFull("no space for the queue")

    with monkeypatch.context() as patched, pytest.raises(DiskFull, match="for the queue"):
        patched.setattr(WorkQueue, "end", full)
        go(store, make(1, attempts={"1": {"at": 3, "do": "disk_full"}}))
    go(store)
    assert_whole(store, 1)


def test_drain_finishes_what_runs_and_leaves_the_rest(store):
    jobs = [make(n, steps=40, step_s=0.03, cost=float(9 - n)) for n in range(4)]
    thread = in_thread(store, *jobs)
    wait_for(lambda: events(store, 1, 0) and events(store, 1, 1))
    queue = Queue(store.queue_db)
    queue.drain()
    queue.close()
    thread.join(300)
    assert [row(store, n).state for n in range(4)] == [State.FINISHED] * 2 + [State.WAITING] * 2
    go(store)  # draining affected only the first coordinator
    assert row(store, 3).state is State.FINISHED


def test_a_gpu_that_others_use_is_left_alone_until_they_leave(store, monkeypatch):
    taken = {"GPU-a": "process 4711, 12.3 GB"}
    monkeypatch.setattr(gpu_occupancy, "ASK_EVERY_S", 0.1)
    monkeypatch.setattr(gpu_occupancy.GpuOccupancy.__init__, "__defaults__", (lambda: dict(taken),))
    slots = [Slot("cuda:0", "cuda", 1, "GPU-a"), Slot("cuda:1", "cuda", 1, "GPU-b")]
    thread = in_thread(store, *(make(n, steps=60, step_s=0.05) for n in range(3)), slots=slots)

    def notes():
        queue = Queue(store.queue_db)
        found = queue.notes()
        queue.close()
        return found.get("devices", "")

    wait_for(notes)
    assert notes() == "cuda:0 is not used: process 4711, 12.3 GB"
    wait_for(lambda: events(store, 1, 0))
    assert row(store, 0).slot == "cuda:1"
    assert row(store, 1).state is State.WAITING
    taken.clear()
    wait_for(lambda: row(store, 1).state is State.RUNNING)
    assert row(store, 1).slot == "cuda:0" and not notes()
    thread.join(300)
    assert row(store, 2).state is State.FINISHED


def slots_of(store, number):
    """Return the slots on which the attempts of a run were."""
    with Queue(store.queue_db) as queue:
        return [attempt["slot"] for attempt in queue.history(f"{number:016x}")]


GPUS = [Slot(f"cuda:{i}", "cuda", 1, f"GPU-{i}") for i in range(2)]


def test_a_gpu_that_fails_gets_no_run_any_more(store):
    failing = make(1, attempts={"1": {"at": 3, "do": "device"}}, cost=9.0)
    go(store, failing, *(make(n, cost=1.0) for n in (2, 3, 4)), slots=GPUS)
    assert outcomes(store) == ["device", "finished"] and resumed_at(store, 2) == [2]
    first, again = slots_of(store, 1)
    assert again != first
    with Queue(store.queue_db) as queue:
        assert queue.notes()["devices"] == f"{first} failed: stub says device"
    assert all(row(store, n).state is State.FINISHED for n in (1, 2, 3, 4))


def test_without_a_gpu_that_works_the_rest_of_the_table_waits(store):
    broken = {str(n): {"at": 1, "do": "device"} for n in (1, 2)}
    with pytest.raises(UserError, match=r"No GPU is left: cuda:\d failed: stub says device; cuda:\d fail.*nvidia-smi"):
        go(store, *(make(n, attempts=broken) for n in range(1, 6)), slots=GPUS)
    assert sum(row(store, n).state is State.WAITING for n in range(1, 6)) >= 3
    summary = go(store, slots=SLOTS)  # on CPU slots, where every run ends
    assert summary.failed + summary.finished >= 3


def test_gpus_are_free_again_while_the_first_of_them_evaluates(store, impatient):
    wide = make(1, devices=2, cost=9.0, attempts={"1": {"at": "evaluation", "do": "hang"}})
    go(store, wide, make(2, cost=1.0), slots=GPUS, hang_s=8.0)
    assert outcomes(store) == ["hung", "finished"] and slots_of(store, 2) == ["cuda:1"]
    trained, ended = (next(e["t"] for e in events(store, 1) if e["kind"] == kind) for kind in ("trained", "ended"))
    assert trained <= events(store, 1, 2)[0]["t"] < ended


def test_a_run_on_several_gpus_sees_them_all_and_leaves_the_rest_to_others(store):
    slots = [Slot(f"cuda:{i}", "cuda", 2, f"GPU-{i}") for i in range(4)]
    go(store, make(1, devices=2, cost=9.0), make(2, cost=1.0), slots=slots)
    folder = store.attempt_folder(make(1).run_id, 1)
    assert read_json(folder / "spec.json")["device"] == {
        "kind": "cuda",
        "threads": 2,
        "memory_gb": None,
        "count": 2,
        "share": 1.0,
    }
    assert "GPU-0,GPU-1" in (folder / "log.txt").read_text()
    assert "GPU-2" in (store.attempt_folder(make(2).run_id, 1) / "log.txt").read_text()


def test_a_run_that_needs_two_shares_takes_both_and_is_told_its_cap(store):
    slots = [Slot(f"cuda:0/{i}", "cuda", 2, "GPU-a", memory_gb=10.0, room_gb=10.0, share=0.5) for i in range(2)]
    go(store, make(1, gpu_memory_gb=15.0), make(2, gpu_memory_gb=5.0), slots=slots)
    spec = read_json(store.attempt_folder(make(1).run_id, 1) / "spec.json")
    assert spec["device"] == {"kind": "cuda", "threads": 4, "memory_gb": 20.0, "count": 1, "share": 1.0}
    assert json.loads(json.dumps(spec["pinned"]))["devices"] == 1
    queue = Queue(store.queue_db)
    assert queue.history(make(1).run_id)[0]["slot"] == "cuda:0/0+cuda:0/1"
    queue.close()


def test_runs_start_as_memory_comes_free_and_say_what_they_wait_for(store, monkeypatch):
    free = [1.0]
    monkeypatch.setattr(hardware, "free_memory_gb", lambda: free[0])
    monkeypatch.setattr(hardware, "memory_gb", lambda: 8.0)
    monkeypatch.setattr(admission, "LOOK_EVERY_S", 0.05)
    slots = [Slot(f"cpu:{i}", "cpu", room_gb=8.0) for i in range(3)]
    too_large, large, small = (make(n, memory_gb=gb, cost=9.0 - n) for n, gb in ((1, 50.0), (2, 6.0), (3, 0.5)))
    thread = in_thread(store, too_large, large, small, slots=slots)
    wait_for(lambda: row(store, 1).state is State.FAILED and row(store, 3).state is State.FINISHED)
    assert row(store, 1).error_class == "user_error" and "need 50.0 GB" in row(store, 1).error
    assert row(store, 2).state is State.WAITING
    assert "needs about 6.0 GB, 1.0 GB are free" in row(store, 2).doing
    free[0] = 7.0
    thread.join(300)
    assert row(store, 2).state is State.FINISHED
