"""Tests of the decision whether a run that the queue lists as running is running."""

import os
import socket
import time

import pytest

from experiments.jobs.attempts.liveness import SILENT_S, observed
from experiments.jobs.queue.job import State
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.processes.process_identity import identify
from experiments.store.layout import Store
from tests.made_jobs import made_job

HERE = socket.gethostname()
LIVING = {**identify(os.getpid()), "host": HERE}
ENDED = {**LIVING, "start_ticks": 1}  # another process had this id
ELSEWHERE = {**LIVING, "host": f"not-{HERE}"}
CLUSTER = {"engine": "slurm", "id": "4711"}
RUN_ID = "00a1" * 4


@pytest.fixture
def state(tmp_path):
    """Return a function that gives the observed state and activity of a run.

    ref: the engine's reference to the child. age_s: age of the last heartbeat in seconds; None if there is none.
    """
    store = Store.open(tmp_path / "store")

    def observe(ref, age_s):
        with WorkQueue(store.queue_db) as queue:
            queue.enqueue([made_job(RUN_ID, "translation", {})])
            attempt, folder = store.new_attempt(RUN_ID)
            queue.claim(RUN_ID, attempt, "cpu:0", "cpu")
            if ref:
                queue.started(RUN_ID, attempt, ref, {}, 0)
            queue.progress([(RUN_ID, 4, "training", 12.0)])
            if age_s is not None:
                (folder / "alive").write_text(f"{time.time() - age_s:.3f}\n")
            [row] = observed(store, queue, queue.status())
        return row

    observe.store = store
    return observe


@pytest.mark.parametrize(
    ("ref", "age_s"),
    [
        (ENDED, 1),
        (ENDED, SILENT_S + 9),
        (ELSEWHERE, SILENT_S + 9),  # no coordinator works on the store, and the heartbeat has stopped
        (None, None),  # the coordinator was killed before it started the child
    ],
)
def test_a_run_without_a_coordinator_and_without_a_process_was_interrupted(state, ref, age_s):
    row = state(ref, age_s)
    assert (row.state, row.doing, row.left_s) == (State.INTERRUPTED, "", None)


@pytest.mark.parametrize(
    ("ref", "age_s"), [(LIVING, 1), (LIVING, None), (ELSEWHERE, 1), (ELSEWHERE, None), (CLUSTER, 1), (CLUSTER, None)]
)
def test_a_run_with_a_process_or_a_heartbeat_is_running(state, ref, age_s):
    row = state(ref, age_s)
    assert (row.state, row.doing, row.left_s) == (State.RUNNING, "training", 12.0)


def test_a_run_of_a_cluster_without_heartbeat_may_be_running(state):
    row = state(CLUSTER, 300)
    assert row.state is State.RUNNING
    assert row.doing == "no heartbeat for 5 min by this machine's clock, training"
    assert row.left_s is None


@pytest.mark.parametrize("ref", [ENDED, ELSEWHERE, None])
def test_a_coordinator_itself_records_the_end_of_its_runs(state, ref):
    with state.store.coordinator_lock():
        assert state(ref, 1).state is State.RUNNING


def test_a_run_that_has_ended_in_the_meantime_is_left_alone(state):
    row = state(ENDED, 1)
    with WorkQueue(state.store.queue_db) as queue:
        before = queue.status()
        queue.end_damaged(RUN_ID, "damaged")
        assert observed(state.store, queue, before) == before
    assert row.state is State.INTERRUPTED
