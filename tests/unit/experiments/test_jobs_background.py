"""The tracking thread writes the latest state per run, ends quickly, and its errors never reach the runs."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import sqlalchemy

from experiments.jobs.coordinator import work
from experiments.jobs.coordinator.background import Background
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.local import LocalEngine
from experiments.run_spec import RunSpec
from experiments.store.layout import Store
from experiments.store.tracked_run import TrackedRun
from experiments.tracking.database import explained


def run(name, status="RUNNING"):
    return TrackedRun(RunSpec(name, {}, {}), status)


class Writer:
    def __init__(self, fail=lambda run: False, message="no space left on device"):
        self.wrote, self.fail, self.message, self.thread = [], fail, message, None

    def sync(self, run):
        self.thread = threading.current_thread()
        if self.fail(run):
            raise OSError(self.message)
        self.wrote.append((run.run_id, run.status))


def wait_for(condition):
    until = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


def test_an_end_is_written_at_once_and_reported_once():
    writer = Writer()
    background = Background(lambda: writer, interval_s=100)
    background.track(run("a"))
    wait_for(lambda: writer.wrote == [("a", "RUNNING")])
    background.track(run("b"))
    background.track(run("a", "FINISHED"))
    wait_for(lambda: ("a", "FINISHED") in writer.wrote)
    wait_for(lambda: background.synced() == ["a"])
    assert background.synced() == []
    assert writer.thread is not threading.current_thread()
    background.close()
    assert writer.wrote[-1] == ("b", "RUNNING")


def test_running_runs_are_followed():
    writer = Writer()
    background = Background(lambda: writer, interval_s=0.01)
    background.track(run("a"))
    wait_for(lambda: len(writer.wrote) > 3)
    background.track(run("a", "KILLED"))
    wait_for(lambda: ("a", "KILLED") in writer.wrote)
    background.close()
    assert writer.wrote.count(("a", "KILLED")) == 1


def test_what_could_not_be_written_is_tried_again_and_complained_of_once(caplog):
    broken = [True]
    writer = Writer(fail=lambda run: broken[0])
    background = Background(lambda: writer, interval_s=0.01)
    background.track(run("a", "FINISHED"))
    wait_for(lambda: caplog.records)
    time.sleep(0.05)
    assert background.synced() == []
    broken[0] = False
    wait_for(lambda: background.synced() == ["a"])
    background.close()
    assert len(caplog.records) == 1
    assert "the runs continue" in caplog.text


def test_one_broken_run_does_not_keep_the_others_out(caplog):
    writer = Writer(fail=lambda run: run.run_id == "bad")
    background = Background(lambda: writer, interval_s=100)
    for name in ("bad", "good"):
        background.track(run(name, "FAILED"))
    background.close()
    assert background.synced() == ["good"]


def test_without_mlflow_the_work_goes_on(caplog):
    def missing():
        raise ModuleNotFoundError("No module named 'mlflow'")

    background = Background(missing, interval_s=100)
    background.track(run("a", "FINISHED"))
    background.close()
    assert background.synced() == []
    assert "No module named 'mlflow'" in caplog.text


def test_close_without_a_run_starts_nothing():
    Background(lambda: 1 / 0).close()


@pytest.mark.process
def test_planning_and_queueing_import_neither_torch_nor_mlflow():
    code = (
        "import sys, experiments.jobs.coordinator.work, experiments.tracking.mlflow; "
        "print([m for m in ('torch', 'mlflow', 'pandas', 'numpy') if m in sys.modules])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def test_at_the_end_a_locked_database_is_waited_for(caplog):
    tries = []

    def locked(run):
        tries.append(run.run_id)
        return len(tries) < 3

    writer = Writer(fail=locked, message="database is locked")
    background = Background(lambda: writer, interval_s=100)
    background.track(run("a", "FINISHED"))
    background.close()
    assert background.synced() == ["a"]


@pytest.mark.parametrize("message", ["database is locked", "a bug"])
def test_what_is_not_written_at_the_end_is_said(caplog, message):
    background = Background(lambda: Writer(fail=lambda run: True, message=message), interval_s=100, patience_s=0.1)
    background.track(run("a", "FINISHED"))
    background.close()
    assert background.synced() == []
    assert "not up to date in MLflow: 1." in caplog.text and "ablations ui --rebuild mlflow" in caplog.text


def test_a_writer_that_does_not_answer_is_waited_for_no_longer_than_said(caplog):
    """If a server is down or a lock is held after Ctrl-C, the thread ends. The next command writes the rest."""
    answer, interrupted = threading.Event(), threading.Event()

    class Silent(Writer):
        def sync(self, run):
            super().sync(run)
            answer.wait(120)

    writer = Silent()
    background = Background(lambda: writer, interval_s=100)
    for name in ("a", "b"):
        background.track(run(name, "FINISHED"))
    wait_for(lambda: writer.wrote)
    threading.Timer(0.5, interrupted.set).start()
    began = time.monotonic()
    background.close(0.3, hurry=interrupted.is_set)
    assert 0.7 < time.monotonic() - began < 30
    assert "not up to date after 0.3 s" in caplog.text and "ablations ui --rebuild mlflow" in caplog.text
    answer.set()
    background._thread.join(60)
    assert writer.wrote == [("a", "FINISHED")] and background.synced() == ["a"] and len(caplog.records) == 1


def test_interrupted_work_ends_soon_though_mlflow_does_not_answer(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(work, "INTERRUPTED_S", 0.3)
    answer = threading.Event()

    class Interrupted(Background):
        def close(self, *given, **more):
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()  # while it is waited for
            super().close(*given, **more)

    background = Interrupted(lambda: Writer(fail=lambda run: answer.wait(120)), interval_s=100)
    background.track(run("a", "FINISHED"))
    began, store = time.monotonic(), Store.open(tmp_path / "store")
    summary = work.work(store, [Slot("cpu:0", "cpu")], None, background, engine=LocalEngine((), fork=False))
    assert summary.interrupted == signal.SIGINT and 0.7 < time.monotonic() - began < 60
    assert "MLflow is not up to date after 0.3 s" in caplog.text
    answer.set()


@pytest.mark.parametrize("full", [True, False])
def test_a_full_disk_is_told_in_a_line_and_a_bug_with_its_traceback(tmp_path, caplog, full):
    """SQLAlchemy's error has many lines and contains the statement."""
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path / 'full.db'}")

    class Database(Writer):
        def sync(self, run):
            with explained(tmp_path / "full.db"), engine.begin() as connection:  # as the tracker does
                connection.exec_driver_sql("PRAGMA max_page_count = 1" if full else "PRAGMA max_page_count")
                connection.exec_driver_sql("CREATE TABLE runs (name TEXT)" if full else "no statement")

    background = Background(Database, interval_s=100)
    background.track(run("a", "FINISHED"))
    background.close()
    told, *_ = caplog.records
    assert ("There is no space left" in caplog.text) is full
    assert (not told.exc_info) is full and ("\n" in told.getMessage()) is not full
