"""No value is lost on the way to MLflow, and an incrementally written database equals a rebuilt one."""

import contextlib
import os
import random
import sqlite3
import threading
import time
from pathlib import Path

import pytest

from experiments.errors import UserError
from experiments.events.event_log import FILE, EventWriter
from experiments.jobs.coordinator.background import Background
from experiments.run_spec import RunSpec
from experiments.store.checksummed import write_json
from experiments.store.layout import Store, TableRow, keep_row
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.database import log, make_database
from experiments.tracking.mlflow import POSITION, Tracker
from experiments.tracking.rebuild import lacking, rebuild, recognise, write_lacking
from experiments.tracking.record import RECORD, content
from experiments.tracking.written import file_of, note, written
from tests.in_mlflow import content_of
from tests.slow import mostly_nightly

pytestmark = pytest.mark.slow  # importing MLflow and making its tables takes seconds

E1, E2 = "1" * 16, "2" * 16
MEMBERS = (("table3", "demo", "builtin", "A-h16", "A"), ("controls", "demo", "builtin", "seeds", ""))
ODD = {"a%": 1.0, "a//b": 2.0, "": 3.0, "loss/" + "long" * 100: 4.0, "a": 5.0, "a/b": 6.0, "t": 7.0, "wall_s": 8.0}


def run(number, status="FINISHED", members=MEMBERS[:1], **more):
    config = {"model": {"d_model": 8}, "evaluation": {"beam_size": 4}, "odd%name": 1}
    inputs = {"corpus": "c0ffee", "ä%.txt": "abc"}
    spec = RunSpec(f"{number:016x}", {**config, "task": "stub", "seed": 2}, inputs)
    return TrackedRun(spec, status, tuple(members), **more)


def begin(store, number, restarted=False):
    attempt_number, folder = store.new_attempt(f"{number:016x}")
    events = EventWriter(folder)
    if restarted:
        events.emit("restarted", why="a test")
    events.emit(
        "started",
        attempt=attempt_number,
        after_s=0.0,
        members=[list(MEMBERS[0])],
        host="h",
        code_digest=f"d{attempt_number}",
    )
    (folder / "log.txt").write_text(f"log of {attempt_number}\n")
    return events


def points(events, steps, value=1.0, **more):
    for step in steps:
        events.emit("metrics", step=step, metrics={"loss": value / (step + 1), **more})


def finish(store, number, events, *evaluations):
    home = store.run_folder(f"{number:016x}")
    if not (home / "result.json").exists():
        events.emit("trained", step=9)
        write_json(home / "result.json", {"attempt": 1, "train_s": 2.5, "num_params": 77})
    for eval_id, name, metrics in evaluations:
        folder = store.evaluation_folder(f"{number:016x}", eval_id)
        folder.mkdir(parents=True)
        write_json(folder / "result.json", {"set": name, "metrics": metrics})
        events.emit("evaluated", eval_id=eval_id, set=name, metrics=metrics)


def dump(store):
    return content_of(store.mlflow_db)


def test_a_database_that_grew_equals_one_that_is_rebuilt(tmp_path):
    """Runs are killed, resumed, restarted, failed, decoded again and shared, and are written in random parts."""
    store, chance = Store.open(tmp_path / "store"), random.Random(3)
    trackers = [Tracker(store)]

    def sync(one):
        if chance.random() < 0.3:
            trackers[0] = Tracker(store)  # another coordinator
        trackers[0].sync(one)

    for number in range(1, 7):
        sync(run(number, "RUNNING"))  # before it has begun
        events = begin(store, number)
        for steps in (range(1, 3), range(3, 6)):
            points(events, steps, lr=float("nan") if number == 2 else 0.5)
            sync(run(number, "RUNNING"))
        keep_row(store, f"{number:016x}", TableRow(MEMBERS[0], {"dev": E1}))
        if number == 4:  # a row of another study decodes the same weights otherwise
            keep_row(store, f"{number:016x}", TableRow(MEMBERS[1], {"dev": E2}, {"evaluation.beam_size": 1}))
        sync(run(number, "KILLED" if number < 4 else "FAILED", error="" if number < 4 else "out of memory " * 999))
        events = begin(store, number, restarted=number == 3)
        points(events, range(4, 10), value=float("inf") if number == 6 else 2.0, **(ODD if number == 1 else {}))
        sync(run(number, "RUNNING"))
        if number == 5:
            sync(run(number, "FAILED", error="it broke"))
            continue
        finish(store, number, events, (E1, "dev", {"bleu": 30.0, "num_params": 5, "a%": float(number)}))
        sync(run(number))
        finish(store, number, begin(store, number), (E2, "dev", {"bleu": 28.0}), ("3" * 16, "x_1", {"bleu": 1.5}))
        sync(run(number, "RUNNING"))
        if number == 4:  # scored again by other code
            events, metrics = begin(store, number), {"bleu": 31.0, "num_params": 5, "a%": 4.0}
            record = store.evaluation_folder(f"{number:016x}", E1) / "result.json"
            write_json(record, {"set": "dev", "metrics": metrics})
            events.emit("evaluated", eval_id=E1, set="dev", metrics=metrics, renews=2)
        keep_row(store, f"{number:016x}", TableRow((*MEMBERS[0][:3], "greedy", "A"), {"dev": E2}))
        sync(run(number, members=MEMBERS))
    trackers[0].sync(run(6))
    trackers[0].close()
    last = [run(number, members=MEMBERS if number < 5 else MEMBERS[:1]) for number in (1, 2, 3, 4, 6)]
    last[-1] = run(6, members=MEMBERS)
    Tracker(store).sync(last[-1])
    grown = dump(store)
    assert rebuild(store, [*last[:4], run(5, "FAILED", error="it broke"), last[-1]]) == []
    rebuilt = dump(store)
    for table in grown:
        assert grown[table] - rebuilt[table] == set() == rebuilt[table] - grown[table], table
    of_two = [row for row in grown["metrics"] if row[1] == "train_loss" and row[0].endswith("2")]
    assert sorted(row[-1] for row in of_two) == list(range(1, 10))
    assert sum(row[1] == "num_params" for row in grown["metrics"]) == 5 + 5 + 1  # with the rows that share a training
    assert {row[2] for row in grown["metrics"] if row[1] == "bleu" and row[0].endswith("greedy")} == {"28.0"}
    assert any(row[1] == "train_loss" and float(row[2]) > 1e300 for row in grown["metrics"])
    artifacts = {path.relative_to(store.artifacts).parts[2:] for path in store.artifacts.rglob("*.txt")}
    assert ("artifacts", "attempts", "0003", "log.txt") in artifacts
    assert not list(store.root.glob(".mlflow-*"))


class Killed(BaseException):
    """A simulated end of the process, before or after one of its calls."""


@pytest.mark.parametrize("killed", mostly_nightly([True, False], 1))
def test_whatever_write_fails_nothing_is_lost_or_doubled(tmp_path, killed):
    """Every call may fail before or after its write; sync is repeated until it succeeds, by the next process if any."""
    store, chance = Store.open(tmp_path / "store"), random.Random(5)
    events = begin(store, 1)
    points(events, range(2500))
    finish(store, 1, events, (E1, "dev", {"bleu": 30.0}))
    keep_row(store, f"{1:016x}", TableRow(MEMBERS[0], {"dev": E1}))
    keep_row(store, f"{1:016x}", TableRow(MEMBERS[1], {"dev": E1}))
    error, failures = Killed() if killed else OSError("database is locked"), 0

    class Failing:
        def __init__(self, client):
            self._real = client

        def __getattr__(self, name):
            def call(*args, **more):
                nonlocal failures
                fails = chance.random() < 0.25
                if fails and chance.random() < 0.5:
                    failures += 1
                    raise error
                answer = getattr(self._real, name)(*args, **more)
                if fails:
                    failures += 1
                    raise error
                return answer

            return call

    def failing():
        tracker = Tracker(store)
        for part in (tracker, tracker.headings, tracker.artifacts):
            name = "client" if part is tracker else "_client"
            setattr(part, name, Failing(getattr(part, name)))
        return tracker

    tracker = failing()
    for _ in range(500):
        try:
            tracker.sync(run(1))
        except (Killed, OSError):
            assert lacking(store) == {f"{1:016x}": False}
            tracker = failing() if killed else tracker
            continue
        break
    else:
        pytest.fail("sync never returned")
    assert failures > 5 and lacking(store) == {}
    grown = dump(store)
    rebuild(store, [run(1)])
    assert dump(store) == grown
    assert sum(row[1] == "train_loss" for row in grown["metrics"]) == 2500


def test_of_two_entries_of_a_run_the_next_sync_leaves_one(tmp_path):
    """Two processes made them at the same moment: one was waited for no longer, and the next had begun."""
    store = Store.open(tmp_path / "store")
    points(begin(store, 1), range(5))
    trackers = [Tracker(store), Tracker(store)]
    for tracker in trackers:
        tracker._find = lambda run: None
        tracker.sync(run(1, "RUNNING"))
    finish(store, 1, begin(store, 1), (E1, "dev", {"bleu": 30.0}))
    Tracker(store).sync(run(1))
    shown = dump(store)
    assert sum(row[0] == f"{1:016x}" for row in shown["runs"]) == 1
    assert sorted(row[-1] for row in shown["metrics"] if row[1] == "train_loss") == list(range(5))


@pytest.mark.parametrize(
    "counts", [(0, 0, 0), (1, 1, 1), (2500, 0, 250), (1000, 100, 100), (3, 301, 0), (799, 101, 101)]
)
def test_no_call_is_larger_than_mlflow_allows(counts):
    calls = []

    class Client:
        def log_batch(self, mlflow_id, metrics, params, tags, synchronous):
            assert mlflow_id == "m" and synchronous
            calls.append((metrics, params, tags))

    given = tuple(list(range(count)) for count in counts)
    log(Client(), "m", metrics=given[0], params=given[1], tags=given[2])
    assert tuple([item for call in calls for item in call[kind]] for kind in range(3)) == given
    for metrics, params, tags in calls:
        assert 0 < len(metrics) + len(params) + len(tags) <= 1000 and len(params) <= 100 and len(tags) <= 100
    assert len(calls) == max(-(-sum(counts) // 1000), -(-counts[1] // 100), -(-counts[2] // 100))


@pytest.mark.parametrize("closing", mostly_nightly([True, False], 1))
def test_a_lock_on_the_database_loses_no_point(tmp_path, closing, caplog):
    store = Store.open(tmp_path / "store")
    events = begin(store, 1)
    points(events, range(50))
    Tracker(store).sync(run(1, "RUNNING"))
    background = Background(lambda: Tracker(store), 0.2)
    lock = sqlite3.connect(store.mlflow_db, isolation_level=None, check_same_thread=False)
    lock.execute("BEGIN EXCLUSIVE")
    background.track(run(1, "RUNNING"))
    points(events, range(50, 100))
    finish(store, 1, events, (E1, "dev", {"bleu": 30.0}))
    background.track(run(1))
    if closing:
        threading.Timer(30.0, lambda: lock.execute("ROLLBACK")).start()
    else:
        until = time.monotonic() + 60
        while not caplog.records:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert background.synced() == []
        lock.execute("ROLLBACK")
    background.close()
    assert background.synced() == [f"{1:016x}"]
    steps = [row[-1] for row in dump(store)["metrics"] if row[1] == "train_loss"]
    assert sorted(steps) == list(range(100))


def test_without_its_mark_a_run_is_written_again_and_nothing_twice(tmp_path):
    store = Store.open(tmp_path / "store")
    events = begin(store, 1)
    points(events, range(100))
    Tracker(store).sync(run(1, "RUNNING"))
    whole, client = dump(store), Tracker(store).client
    [one] = client.search_runs([e.experiment_id for e in client.search_experiments()], f"tags.run_id = '{1:016x}'")
    client.delete_tag(one.info.run_id, POSITION)
    Tracker(store).sync(run(1, "RUNNING"))
    assert dump(store) == whole


def test_a_run_that_cannot_be_written_does_not_keep_the_others_out(tmp_path):
    store = Store.open(tmp_path / "store")
    for number in (1, 2, 3):
        points(begin(store, number), range(5))
    (store.attempt_folder(f"{2:016x}", 1) / FILE).write_bytes(b"rubbish\n" * 100)
    bad = TrackedRun(RunSpec(f"{3:016x}", {}, {}), "NO SUCH STATUS")
    problems = rebuild(store, [run(1), run(2), bad])
    assert len(problems) == 1 and problems[0].startswith(f"{3:016x}: ")
    assert {row[0] for row in dump(store)["runs"]} >= {f"{1:016x}", f"{2:016x}"}


def _other_version(path):
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE alembic_version SET version_num='0123456789ab'")
        database.commit()


HARMS = {
    "not an SQLite file": lambda path: path.write_bytes(random.Random(1).randbytes(5000)),
    "is damaged": lambda path: os.truncate(path, path.stat().st_size // 2),
    "of another version": _other_version,
    "cannot be opened": lambda path: (path.unlink(), path.mkdir()),
    "was removed": None,  # while a coordinator has it open
}


@pytest.mark.parametrize("said", HARMS)
def test_a_damaged_database_is_one_line_keeps_no_run_from_ending_and_is_rebuilt(tmp_path, said, caplog):
    store = Store.open(tmp_path / "store")
    points(begin(store, 1), range(5))
    make_database(store.mlflow_db)
    tracker = None if HARMS[said] else Tracker(store)
    (HARMS[said] or Path.unlink)(store.mlflow_db)
    finish(store, 1, begin(store, 1), (E1, "dev", {"bleu": 30.0}))
    background = Background(lambda: tracker or Tracker(store), 0.1, patience_s=0)
    background.track(run(1))
    background.close()
    assert background.synced() == [], "the next coordinator tries again"
    told, left = caplog.records
    assert said in told.getMessage() and "`ablations ui --rebuild mlflow`" in told.getMessage()
    assert not told.exc_info and "\n" not in told.getMessage() and "Runs not up to date" in left.getMessage()
    assert lacking(store) == {f"{1:016x}": False}
    if store.mlflow_db.is_dir():
        with pytest.raises(UserError, match="there is a folder instead of a file"):
            rebuild(store, [run(1)])
        store.mlflow_db.rmdir()
    assert rebuild(store, [run(1)]) == []
    assert {row[1:3] for row in dump(store)["metrics"]} >= {("bleu", "30.0"), ("train_loss", "0.2")}


def test_a_run_that_got_a_row_since_is_shown_as_it_was_not_lacking(tmp_path):
    store = Store.open(tmp_path / "store")
    finish(store, 1, begin(store, 1), (E1, "dev", {"bleu": 30.0}))
    assert lacking(store) == {f"{1:016x}": False}
    assert rebuild(store, [run(1)]) == [] and lacking(store) == {}
    keep_row(store, f"{1:016x}", TableRow(MEMBERS[1], {"dev": E1}))
    assert lacking(store) == {f"{1:016x}": True}


def test_what_version_0_1_wrote_to_mlflow_is_read_once_also_what_was_deleted(tmp_path):
    store = Store.open(tmp_path / "store")
    for number in (1, 2, 3):
        finish(store, number, begin(store, number), (E1, "dev", {"bleu": 30.0}))
    assert rebuild(store, [run(1), run(2)]) == []
    tracker = Tracker(store)
    for number in (1, 2):  # as that version marked every run
        (found,) = tracker._search(f"tags.run_id = '{number:016x}'")
        tracker.client.set_tag(found.info.run_id, RECORD, content(store, f"{number:016x}"))
    tracker.client.delete_run(found.info.run_id)
    before = dump(store)
    file_of(store.mlflow_db).unlink()
    assert lacking(store) == {}, "not known yet"
    recognise(store)
    assert lacking(store) == {f"{3:016x}": False} and dump(store) == before
    assert write_lacking(store) == 1 and lacking(store) == {}


@pytest.mark.parametrize("damage", [b"[" * 5000, b"\0\xff\n", b'["a"]\n{}\n[1, 2]'])
def test_a_damaged_list_of_what_mlflow_shows_costs_only_its_lines(tmp_path, damage):
    database = tmp_path / "mlflow.db"
    make_database(database)
    file_of(database).write_bytes(damage)
    note(database, "a", "1")
    assert written(database) == {"a": "1"}
    file_of(database).unlink()
    file_of(database).mkdir()
    with pytest.raises(UserError, match="rebuild mlflow"):
        written(database)


def test_what_mlflow_shows_is_known_without_it(tmp_path):
    """A line that a kill truncated loses only this line.

    Without the database, or with a new one, no run counts as shown.
    """
    database = tmp_path / "mlflow.db"
    note(database, "a", "1")
    assert written(database) == {}
    make_database(database)
    assert written(database) == {}
    for line in (("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"), ("b", "")):
        note(database, *line)
    with file_of(database).open("ab") as file:
        file.write(b'\n["d", "\xff')
    note(database, "e", "1")
    assert written(database) == {"a": "2", "c": "1", "e": "1"}
    database.unlink()
    assert written(database) == {}
