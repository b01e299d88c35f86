"""Costs of attempts and training times, from events with given times, equal sums computed by hand."""

import os
import time

import pytest

from experiments.events import event_log, heartbeat
from experiments.events.accounting import HEAD, AttemptCost, attempt_costs, training_time
from experiments.events.event_log import FILE, EventWriter
from experiments.records import record_time
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.spec import FILE as SPEC

RUN, OTHER = "a" * 16, "b" * 16
CPU = {"kind": "cpu", "threads": 3, "count": 2}
GPU = {"kind": "cuda", "share": 0.25, "count": 1, "threads": 4}


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


@pytest.fixture
def attempt(store, monkeypatch):
    """Write the next attempt: its spec (None for no spec), and events as (time, kind, fields)."""

    def write(*events, train=True, spec=None):
        _, folder = store.new_attempt(RUN)
        if train is not None:
            write_json(folder / SPEC, {"train": train} if spec is None else spec)
        if not events:
            return folder
        writer = EventWriter(folder)
        for t, kind, fields in events:
            monkeypatch.setattr(event_log, "record_time", lambda t=t: float(t))
            writer.emit(kind, **fields)
        writer.close()
        return folder

    return write


def started(t, after_s=0.0, **more):
    return t, "started", {"attempt": 1, "after_s": after_s, **more}


def failed(t, cls="oom"):
    return t, "failed", {"cls": cls, "message": "why"}


def test_an_attempt_lasts_from_the_start_of_its_process_to_its_last_event(store, attempt):
    attempt(
        started(1000, 2.5, device=CPU, members=[["t3", "demo", "c", "base", ""], ["t4", "", "c", "B", ""]]),
        (1004, "checkpoint", {"step": 1, "path": "p", "cpu_s": 3.0}),
        (1010.25, "finished", {"cpu_s": 7.5, "cpu_joules": 80.0, "gpu_joules": 0.0}),
    )
    assert attempt_costs(store, RUN) == [
        AttemptCost(
            attempt=1, wall_s=12.75, seen=True, ended="finished", t=1010.25, kind="cpu", device_s=76.5, cpu_s=7.5,
            cpu_joules=80.0, gpu_joules=0.0, tables=["t3 demo", "t4"],
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("last", "ended", "seen"),
    [
        ((1003, "preempted", {"step": None}), "stopped", True),
        (failed(1003, "diverged"), "diverged", True),
        ((1003, "ended", {}), "killed", True),
        ((1003, "trained", {"step": 4}), "", False),
    ],
)
def test_how_it_ended_is_its_last_event(store, attempt, last, ended, seen):
    attempt(started(1000, device=GPU, cpu_s=0.5), last)
    (one,) = attempt_costs(store, RUN)
    assert (one.ended, one.seen, one.wall_s, one.device_s) == (ended, seen, 3.0, 0.75)


def test_what_a_killed_attempt_used_is_what_it_said_last(store, attempt):
    """The coordinator wrote the end of the attempt without knowing when it ended."""
    attempt(started(1000), (1002, "checkpoint", {"step": 1, "path": "p", "cpu_s": 1.5}), (1005, "ended", {}))
    (one,) = attempt_costs(store, RUN)
    assert (one.wall_s, one.cpu_s, one.cpu_joules) == (5.0, 1.5, None)


def test_one_that_is_followed_by_another_was_killed_and_the_last_may_run(store, attempt):
    attempt(started(1000), (1001, "trained", {"step": 1}))
    attempt(started(2000), (2004, "trained", {"step": 1}))
    assert [(one.attempt, one.ended, one.wall_s) for one in attempt_costs(store, RUN)] == [
        (1, "killed", 1.0),
        (2, "", 4.0),
    ]


@pytest.mark.parametrize(
    "device",
    [None, {}, {"kind": 3}, {"kind": "cpu", "threads": 0}, {"kind": "cpu", "count": -1}, {"kind": "cuda", "share": "x"},
     {"kind": "cpu", "threads": 1e6}],
)  # fmt: skip
def test_a_lease_that_is_none_is_not_counted(store, attempt, device):
    attempt(started(1000, **({} if device is None else {"device": device})), (1001, "finished", {}))
    (one,) = attempt_costs(store, RUN)
    assert (one.kind, one.device_s, one.wall_s) == (None, None, 1.0)


def test_without_its_start_it_counts_from_its_first_known_event(store, attempt):
    """This also holds if a start comes after the first HEAD events, as in a merged file."""
    attempt((1000, "pinned", {}), (1003, "finished", {}))
    points = [(2000 + n, "metrics", {"step": n, "metrics": {}}) for n in range(HEAD)]
    attempt(*points, started(2100, 50.0), (2110, "finished", {}))
    attempt(*points[:-1], started(2100, 50.0), (2110, "finished", {}))
    assert [(one.seen, one.wall_s) for one in attempt_costs(store, RUN)] == [(False, 3.0), (False, 110.0), (True, 60.0)]


def test_a_clock_that_went_back_gives_no_negative_time(store, attempt):
    attempt(started(1000, 1.5), (990, "finished", {}))
    assert attempt_costs(store, RUN)[0].wall_s == 1.5


def test_an_attempt_whose_events_are_lost_is_known_from_the_record(store, attempt):
    """Only the one that the record is of; one without events that never began is none."""
    attempt()
    attempt()
    attempt(train=None)
    write_json(
        store.run_folder(RUN) / "result.json", {"run_id": RUN, "attempt": 2, "wall_s": 7.5, "earlier_attempts": []}
    )
    assert attempt_costs(store, RUN) == [AttemptCost(attempt=2, wall_s=7.5, ended="finished")]


def test_a_damaged_record_adds_nothing(store, attempt):
    attempt()
    (store.run_folder(RUN) / "result.json").write_text("{")
    assert attempt_costs(store, RUN) == []


def test_attempts_that_were_made_elsewhere_are_those_of_the_record(store, attempt):
    """Each earlier attempt of an imported run is counted once, whether its folder was imported or not."""
    attempt(started(1000), failed(1002))
    attempt(started(2000), (2003, "finished", {}), train=None)
    earlier = [
        {"attempt": 1, "seconds": 2.0, "ended": "oom"},  # its folder is here
        {"attempt": 2, "seconds": 4.0, "ended": ""},  # another one than the folder of that number here
        {"attempt": 7, "seconds": 5.0, "ended": "stopped"},
    ]
    record = {"run_id": RUN, "attempt": 2, "wall_s": 3.0, "earlier_attempts": earlier}
    write_json(store.run_folder(RUN) / "result.json", record)
    found = attempt_costs(store, RUN)
    assert [(one.attempt, one.wall_s, one.ended, one.seen) for one in found] == [
        (2, 4.0, "killed", True), (7, 5.0, "stopped", True), (1, 2.0, "oom", True), (2, 3.0, "finished", True),
    ]  # fmt: skip


# --- Training time


def test_training_time_is_the_sum_of_all_attempts(store, attempt):
    attempt(started(1000), (1004, "trained", {"step": 4}), (1009, "metrics", {"step": 4, "metrics": {}}), failed(1010))
    attempt(started(2000), (2001.5, "preempted", {"step": 2}))
    attempt(started(3000), (3003, "checkpoint", {"step": 3, "path": "p"}))
    attempt(started(4000))  # this one, whose seconds are given
    attempt(started(5000), (5100, "finished", {}))  # a later one is no part of it
    found = training_time(store, RUN, 4, 8.25)
    assert found == {
        "train_s": 16.75,
        "earlier_attempts": [
            {"attempt": 1, "seconds": 4.0, "ended": "oom"},
            {"attempt": 2, "seconds": 1.5, "ended": "stopped"},
            {"attempt": 3, "seconds": 3.0, "ended": "killed"},
        ],
        "continues": None,
    }


def test_what_lies_before_a_restart_does_not_count(store, attempt):
    attempt(started(1000), (1100, "failed", {"cls": "oom", "message": ""}))
    attempt((2000, "restarted", {}), started(2001), (2003, "preempted", {"step": 1}))
    attempt(started(3000))
    found = training_time(store, RUN, 3, 1.0)
    assert [one["attempt"] for one in found["earlier_attempts"]] == [2] and found["train_s"] == 4.0


def test_attempts_that_only_evaluated_do_not_count_and_damaged_specs_do(store, attempt):
    attempt(started(1000), (1100, "finished", {}), train=False)
    folder = attempt(started(2000), (2002, "preempted", {"step": 1}))
    (folder / SPEC).write_text("{")
    attempt(started(2500), (2600, "preempted", {"step": 1}), train=None)  # no spec: it was imported, or never begun
    attempt(started(3000))
    found = training_time(store, RUN, 4, 1.0)
    assert [one["attempt"] for one in found["earlier_attempts"]] == [2] and found["train_s"] == 3.0


def test_of_a_curve_only_the_end_is_needed(store, attempt):
    """The last of consecutive points is the time at which a killed attempt was last seen."""
    points = [(1000 + n, "metrics", {"step": n, "metrics": {}}) for n in range(1, 40)]
    attempt(started(1000), *points)
    attempt(*((t + 1000, kind, fields) for t, kind, fields in points))  # a curve alone
    found = training_time(store, RUN, 3, 0.0)
    assert [one["seconds"] for one in found["earlier_attempts"]] == [39.0, 38.0]


@pytest.mark.parametrize(
    ("run", "continues"), [({"run": OTHER}, {"run_id": OTHER, "step": 4}), ({"run": RUN}, None), ({}, None)]
)
def test_a_run_that_began_with_another_ones_checkpoint_names_it(store, attempt, run, continues):
    """By the first resume of the line of work; later ones go on from its own."""
    attempt(started(1000), (1001, "resumed", {"step": 4, "path": "p", **run}), (1002, "preempted", {"step": 6}))
    attempt(started(2000), (2001, "resumed", {"step": 6, "path": "q", "run": RUN}))
    assert training_time(store, RUN, 2, 1.0)["continues"] == continues


def test_a_run_without_events_has_its_own_seconds(store, attempt):
    attempt()
    assert training_time(store, RUN, 1, 2.0) == {"train_s": 2.0, "earlier_attempts": [], "continues": None}
    assert not (store.attempt_folder(RUN, 1) / FILE).exists()


def test_an_attempt_whose_end_nobody_recorded_lasts_to_its_last_heartbeat(store, attempt):
    folder = attempt(started(1000, 0.5, device=CPU))
    (folder / heartbeat.FILE).write_text("1008.000\n")
    (one,) = attempt_costs(store, RUN)
    assert (one.wall_s, one.t, one.seen, one.device_s) == (8.5, 1008.0, False, 51.0)
    attempt(started(2000), (2003, "finished", {}))
    assert training_time(store, RUN, 2, 3.0)["train_s"] == 11.0
    (folder / heartbeat.FILE).write_text("damaged")
    assert attempt_costs(store, RUN)[0].wall_s == 0.5
    (folder / heartbeat.FILE).unlink()
    os.mkfifo(folder / heartbeat.FILE)
    assert attempt_costs(store, RUN)[0].wall_s == 0.5


def test_a_recorded_end_counts_and_not_a_later_heartbeat(store, attempt):
    folder = attempt(started(1000), (1004, "failed", {"cls": "bug", "message": "why"}))
    (folder / heartbeat.FILE).write_text("1008.000\n")
    assert attempt_costs(store, RUN)[0].wall_s == 4.0


def test_a_heartbeat_is_the_time(tmp_path):
    begin = record_time()
    heartbeat.start_heartbeat(tmp_path)
    until = time.monotonic() + 20
    while not heartbeat.last_heartbeat(tmp_path) and time.monotonic() < until:
        time.sleep(0.01)
    assert begin - 0.01 <= heartbeat.last_heartbeat(tmp_path) <= record_time() + 0.01  # recorded in whole milliseconds
