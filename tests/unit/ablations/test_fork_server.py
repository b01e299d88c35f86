"""Tests of the modules that the fork server imports before it starts the first child."""

import sqlite3

import pytest

from ablations.service.coordination import WorkOptions
from experiments.jobs.engines import local
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store
from tests.made_jobs import made_job


@pytest.mark.parametrize(
    ("tasks", "torch"),
    [
        (["command"], False),
        (["command", "a_function:TASK"], False),
        (["command", "translation"], True),
        (["no_such_module:TASK"], False),
        ([], True),  # a tuner queues later
    ],
)
def test_torch_is_imported_only_for_runs_that_need_it(tmp_path, monkeypatch, tasks, torch):
    [modules] = preloaded(tmp_path, monkeypatch, tasks)
    assert ("torch" in modules) is torch


def test_a_damaged_entry_of_the_queue_may_need_it(tmp_path, monkeypatch):
    def damage(path):
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE jobs SET spec = '{\"task\": ' WHERE run_id = ?", (f"{1:016x}",))

    [modules] = preloaded(tmp_path, monkeypatch, ["command", "command"], damage)
    assert "torch" in modules


def preloaded(folder, monkeypatch, tasks, then=lambda path: None):
    store = Store.open(folder / "store")
    with Queue(store.queue_db) as queue:
        queue.enqueue(made_job(f"{number:016x}", task, folder=str(folder)) for number, task in enumerate(tasks))
    then(store.queue_db)
    seen = []
    monkeypatch.setattr(local, "ForkServer", seen.append)
    WorkOptions(devices="cpu:1")._engine(store)
    return seen
