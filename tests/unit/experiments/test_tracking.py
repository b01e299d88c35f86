"""MLflow shows a run's events and results completely and without duplicates, and can be rebuilt from them."""

import contextlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from experiments.events.event_log import EventWriter
from experiments.events.history import History
from experiments.run_spec import RunSpec
from experiments.store.checksummed import write_json
from experiments.store.layout import Store, TableRow, keep_row
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.database import ui_command
from experiments.tracking.mlflow import Tracker
from experiments.tracking.rebuild import rebuild
from experiments.tracking.record import final_points

pytestmark = pytest.mark.slow  # importing MLflow and making its tables takes seconds

E1, E2, E3 = "1" * 16, "2" * 16, "3" * 16
CONFIG = {
    "model": {"d_model": 8, "num_heads": 2},
    "data": {"train": []},
    "training": {"train_steps": 9, "note": "x" * 900},
}


def run(number, status="FINISHED", members=(("table3", "demo", "builtin", "A-h16", "A"),), **more):
    inputs = {"corpus": "c0ffee"}
    spec = RunSpec(f"{number:016x}", {**CONFIG, "task": "stub", "seed": 2}, inputs, num_params=1234)
    return TrackedRun(spec, status, tuple(members), **more)


def attempt(store, number, steps, *, restarted=False, **started):
    attempt_number, folder = store.new_attempt(f"{number:016x}")
    events = EventWriter(folder)
    if restarted:
        events.emit("restarted", step=0)
    events.emit("started", attempt=attempt_number, after_s=0.0, revision={"commit": "abc", "dirty": True}, **started)
    for step in steps:
        events.emit("metrics", step=step, metrics={"loss": attempt_number + step / 10, "lr": 0.5})
    (folder / "log.txt").write_text(f"log of {attempt_number}\n")
    return events


def result(store, number, *evaluations):
    run_id = f"{number:016x}"
    write_json(store.run_folder(run_id) / "result.json", {"attempt": 1, "wall_s": 2.5})
    events = EventWriter(store.attempt_folder(run_id, store.attempts(run_id)[-1]))
    events.emit("trained", step=3)
    for eval_id, name, metrics in evaluations:
        events.emit("evaluated", eval_id=eval_id, set=name, metrics=metrics)
        folder = store.evaluation_folder(run_id, eval_id)
        folder.mkdir(parents=True)
        write_json(folder / "result.json", {"set": name, "metrics": metrics})
        (folder / "output.txt").write_text("ein Satz\n")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Provide one database with separate runs for all tests, because MLflow needs seconds to create its tables."""
    return Store.open(tmp_path_factory.mktemp("home") / "store")


@pytest.fixture(scope="module")
def tracker(home):
    return Tracker(home)


def found(tracker, number):
    client = tracker.client
    experiments = [e.experiment_id for e in client.search_experiments()]
    [one] = client.search_runs(experiments, f"tags.run_id = '{number:016x}'")
    return one


def curve(tracker, number, name="train_loss"):
    one = found(tracker, number)
    return [(m.step, m.value) for m in tracker.client.get_metric_history(one.info.run_id, name)]


def test_a_whole_run(home, tracker):
    attempt(home, 1, range(1, 4), code_digest="d1", host="here")
    result(home, 1, (E1, "dev", {"perplexity": 6.5, "bleu": 30.25}), (E2, "test_2016", {"bleu": 29.0}))
    tracker.sync(run(1))
    one = found(tracker, 1)
    assert one.info.status == "FINISHED"
    assert one.data.params["model.d_model"] == "8" and one.data.params["seed"] == "2"
    assert len(one.data.params["training.note"]) == 500
    expected = {"perplexity": 6.5, "bleu": 30.25, "bleu.test_2016": 29.0, "num_params": 1234, "train_wall_s": 2.5}
    assert expected.items() <= one.data.metrics.items()
    assert {"study": "table3", "row": "A-h16", "group": "A", "seed": "2", "commit": "abc", "dirty": "true"}.items() <= (
        one.data.tags.items()
    )
    assert [(d.dataset.name, d.dataset.digest) for d in one.inputs.dataset_inputs] == [("corpus", "c0ffee")]
    parent = tracker.client.get_run(one.data.tags["mlflow.parentRunId"])
    assert (parent.info.status, parent.data.tags["profile"]) == ("FINISHED", "demo")
    assert curve(tracker, 1) == [(1, 1.1), (2, 1.2), (3, 1.3)]
    folder = home.artifacts / "table3" / one.info.run_id / "artifacts"
    assert (folder / "evaluations" / "dev-11111111" / "output.txt").read_text() == "ein Satz\n"
    assert (folder / "attempts" / "0001" / "log.txt").read_text() == "log of 1\n"


def test_syncing_again_adds_nothing(home, tracker):
    attempt(home, 2, range(1, 4))
    result(home, 2, (E1, "dev", {"bleu": 30.0}))
    for one in (tracker, tracker, Tracker(home)):
        one.sync(run(2))
    assert [step for step, _ in curve(tracker, 2)] == [1, 2, 3]
    assert len(curve(tracker, 2, "bleu")) == 1


def test_no_metric_twice_after_a_resume_also_by_another_coordinator(home, tracker):
    events = attempt(home, 3, range(1, 6))
    tracker.sync(run(3, "RUNNING"))
    assert found(tracker, 3).info.status == "RUNNING"
    events.emit("metrics", step=6, metrics={"loss": 9.0})
    tracker.sync(run(3, "RUNNING"))
    tracker.sync(run(3, "KILLED"))
    assert found(tracker, 3).info.status == "KILLED"
    attempt(home, 3, range(5, 9))  # repeats 5 and 6
    other = Tracker(home)
    other.sync(run(3, "RUNNING"))
    assert found(tracker, 3).info.status == "RUNNING"
    other.sync(run(3, "FAILED", error="it broke"))
    one = found(tracker, 3)
    assert (one.info.status, one.data.tags["error"]) == ("FAILED", "it broke")
    assert curve(tracker, 3) == [(1, 1.1), (2, 1.2), (3, 1.3), (4, 1.4), (5, 1.5), (6, 9.0), (7, 2.7), (8, 2.8)]
    other.sync(run(3))
    assert "error" not in found(tracker, 3).data.tags


@pytest.mark.parametrize("again", [False, True])
def test_started_anew_the_former_curve_is_gone(home, tracker, again):
    number = 4 + again
    attempt(home, number, range(1, 6))
    tracker.sync(run(number, "RUNNING"))
    attempt(home, number, range(1, 3), restarted=True)
    (Tracker(home) if again else tracker).sync(run(number, "RUNNING"))
    assert curve(tracker, number) == [(1, 2.1), (2, 2.2)]


def test_killed_before_its_first_event_a_run_has_no_number_without_a_time(home, tracker):
    home.new_attempt(f"{31:016x}")
    tracker.sync(run(31, "KILLED"))
    attempt(home, 31, range(1, 3))
    result(home, 31)
    tracker.sync(run(31))
    assert curve(tracker, 31, "num_params") == [(0, 1234)]


def test_a_heading_whose_maker_was_killed_is_finished_by_the_next(tracker, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(tracker.client, "set_terminated", die)
        tracker.headings.heading("killed", "demo", "builtin")
    heading = tracker.headings.heading("killed", "demo", "builtin")
    assert tracker.client.get_run(heading).info.status == "FINISHED"


def test_a_run_of_two_studies_is_one_run_with_both_as_tags(home, tracker):
    attempt(home, 6, range(1, 3))
    tracker.sync(run(6))
    both = (("table3", "demo", "builtin", "base", ""), ("controls", "demo", "builtin", "seeds", ""))
    tracker.sync(run(6, members=both))
    tags = found(tracker, 6).data.tags
    assert tags["studies"] == "table3, controls"
    assert (tags["row.table3"], tags["row.controls"]) == ("base", "seeds")


def test_not_a_number_and_many_metrics(home, tracker):
    events = attempt(home, 7, ())
    for step in range(1500):
        events.emit("metrics", step=step, metrics={"loss": float("nan") if step == 3 else 1.0})
    tracker.sync(run(7, "RUNNING"))
    history = curve(tracker, 7)
    assert len(history) == 1500 and history[3][1] != history[3][1]
    assert set(found(tracker, 7).data.metrics) == {"train_loss"}


@pytest.mark.parametrize("queued", [None, E1, E2], ids=["not recorded", "first", "second"])
def test_the_plain_names_are_of_the_decoding_that_was_queued_first(tmp_path, queued):
    """Without a record of it, of the decoding that was made first."""
    store = Store.open(tmp_path / "store")
    attempt(store, 8, ())
    result(store, 8, (E2, "dev", {"bleu": 31.0}), (E1, "dev", {"bleu": 30.0}), (E3, "mscoco", {"bleu": 25.0}))
    if queued:
        keep_row(store, f"{8:016x}", TableRow(("table3", "demo", "builtin", "A-h16", "A"), {"dev": queued}))
    history = History(store, f"{8:016x}")
    list(history.read())
    plain, other = (30.0, 31.0) if queued == E1 else (31.0, 30.0)
    name = "bleu.dev.22222222" if queued == E1 else "bleu.dev.11111111"
    assert {point.name: point.value for point in final_points(store, run(8), history)} == {
        "num_params": 1234.0, "train_wall_s": 2.5, "bleu": plain, name: other, "bleu.mscoco": 25.0
    }  # fmt: skip


def test_sets_of_one_content_have_the_scores_under_both_names(tmp_path):
    store = Store.open(tmp_path / "store")
    attempt(store, 8, ())
    result(store, 8, (E1, "dev", {"bleu": 30.0}))
    keep_row(store, f"{8:016x}", TableRow(("table3", "demo", "builtin", "A-h16", "A"), {"dev": E1, "test": E1}))
    history = History(store, f"{8:016x}")
    list(history.read())
    points = {point.name: point.value for point in final_points(store, run(8), history)}
    assert (points["bleu"], points["bleu.test"]) == (30.0, 30.0)


def test_the_story_of_a_run_needs_no_mlflow(home):
    attempt(home, 9, range(1, 4))
    attempt(home, 9, range(2, 6))
    points = list(History(home, f"{9:016x}").read())
    assert [(p.step, p.value) for p in points if p.name == "loss"] == [(1, 1.1), (2, 1.2), (3, 1.3), (4, 2.4), (5, 2.5)]


def test_the_database_is_in_wal_mode_and_holds_no_path(home, tracker):
    database = sqlite3.connect(home.mlflow_db)
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    dump = "".join(database.iterdump())
    assert str(home.root) not in dump and str(Path.cwd()) not in dump


@pytest.mark.parametrize("size", [1, 100_000, 300_000])
def test_tables_half_made_by_a_killed_process_are_in_nobodys_way(tmp_path, size):
    """MLflow cannot continue an interrupted migration: it always fails with "table … already exists"."""
    own = Store.open(tmp_path / "store")
    code = (
        "import pathlib as p, sys; from experiments.tracking.database import make_database as m; m(p.Path(sys.argv[1]))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(own.mlflow_db)])

    def written():
        found = 0
        for file in own.root.glob(".mlflow-*/mlflow.db*"):
            with contextlib.suppress(FileNotFoundError):  # the journal comes and goes
                found += file.stat().st_size
        return found

    while process.poll() is None and written() < size:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL and not own.mlflow_db.exists() and written() >= size
    attempt(own, 1, ())
    Tracker(own).sync(run(1, "RUNNING"))
    assert found(Tracker(own), 1).info.status == "RUNNING"


def test_the_browser_is_served_on_this_machine_only(home):
    command = ui_command(home, 5001)
    assert command[command.index("--host") + 1] == "127.0.0.1" and command[command.index("--port") + 1] == "5001"
    assert command[command.index("--backend-store-uri") + 1] == f"sqlite:///{home.mlflow_db}"


def test_rebuilt_from_the_events_of_a_moved_store(home, tracker, tmp_path):
    """Writing once at the end gives the same result as writing in parts."""
    moved = Store.open(shutil.copytree(home.root, tmp_path / "moved"))
    rebuild(moved, [run(1), run(3, "FAILED", error="it broke")])
    anew = Tracker(moved)
    for number in (1, 3):
        before, after = found(tracker, number), found(anew, number)
        assert after.info.status == {1: "FINISHED", 3: "FAILED"}[number]
        assert after.data.params == before.data.params
        assert after.data.metrics == before.data.metrics
        assert curve(anew, number) == curve(tracker, number)
    assert json.loads(json.dumps(after.data.tags))["error"] == "it broke"


@pytest.mark.slow
def test_the_server_shows_runs_and_artifacts(home, tracker):
    attempt(home, 10, range(1, 4))
    result(home, 10, (E1, "dev", {"bleu": 30.0}))
    tracker.sync(run(10))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = subprocess.Popen(ui_command(home, port), start_new_session=True, stderr=subprocess.DEVNULL)
    base, one = f"http://127.0.0.1:{port}", found(tracker, 10).info.run_id
    try:
        until = time.monotonic() + 90
        while True:
            try:
                path = "evaluations/dev-11111111"
                listed = f"{base}/ajax-api/2.0/mlflow/artifacts/list?run_id={one}&path={path}"
                with urllib.request.urlopen(listed, timeout=10) as reply:
                    files = [entry["path"] for entry in json.load(reply)["files"]]
                break
            except OSError:
                assert time.monotonic() < until and server.poll() is None
                time.sleep(0.5)
        assert files == [f"{path}/output.txt", f"{path}/result.json"]
        with urllib.request.urlopen(f"{base}/get-artifact?run_uuid={one}&path={files[0]}", timeout=10) as reply:
            assert reply.read() == b"ein Satz\n"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
