"""Node workers with stub runs on a simulated cluster of processes. test_clusters.py tests real clusters."""

import signal
import sys
import threading

import pytest

from experiments.errors import UserError
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.node import Node
from experiments.jobs.engines import worker_pool
from experiments.jobs.engines.worker_pool import WorkerPool
from experiments.jobs.engines.workers import NodeWorkers
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store

from .process_cluster import STARTED, ProcessCluster, end_job, living
from .stub_store import CHILD, assert_whole, enqueue, events, make, none_doubled, outcomes, row, wait_for

NODE = Node.parse("cpu:2")


@pytest.fixture(autouse=True)
def a_disk_without_delay(monkeypatch):
    """Shorten the 10 s that the coordinator waits for files on a slow network disk. Here all files are on one disk."""
    monkeypatch.setattr("experiments.jobs.engines.cluster.LATE_S", 1.0)


@pytest.fixture
def store(tmp_path):
    yield Store.open(tmp_path / "store")
    for name in living():
        end_job(name)
    STARTED.clear()


def on_processes(store, pool, setup):
    inner = ProcessCluster()
    inner.setup = setup
    return NodeWorkers(inner, store.root, pool)


def go(store, until="empty", workers=2, node=NODE, setup=()):
    """Run a coordinator with node workers, or with one cluster job per run if `workers` is 0."""
    engine = on_processes(store, WorkerPool(workers, node) if workers else None, setup)
    slots = {"empty": node.slots(workers or 2), "submitted": node.slots(20), "settled": []}[until]
    return work(store, slots, engine=engine, child=CHILD, until=until)


def in_thread(store, **options):
    found = []
    thread = threading.Thread(target=lambda: found.append(go(store, **options)))
    thread.start()
    return thread, found


def under_way(store, *numbers):
    return all(any(e["kind"] == "checkpoint" for e in events(store, 1, n)) for n in numbers)


def test_few_workers_run_many_attempts(store):
    enqueue(store, *(make(n, steps=10, step_s=0.05) for n in range(8)))
    assert go(store).finished == 8
    none_doubled(store, range(8), 10)
    assert len(STARTED) == 2, "two jobs of the cluster for eight runs"
    wait_for(lambda: not living(), 30)
    assert not list((store.root / "workers").glob("items/*")) + list((store.root / "workers").glob("requests/*"))


def test_a_worker_that_dies_costs_its_runs_nothing_but_time(store):
    enqueue(store, *(make(n, steps=60, step_s=0.1) for n in range(4)))
    working, found = in_thread(store)
    wait_for(lambda: under_way(store, 0, 1, 2, 3), 120)
    end_job(living()[0])
    working.join(600)
    assert found[0].finished == 4
    none_doubled(store, range(4), 60)
    ends = sorted(outcomes(store, n) for n in range(4))
    assert ends == [["finished"]] * 2 + [["killed", "finished"]] * 2


def test_a_worker_whose_time_ends_hands_its_runs_over(store):
    enqueue(store, *(make(n, steps=60, step_s=0.1) for n in range(3)))
    working, found = in_thread(store, workers=1)
    wait_for(lambda: under_way(store, 0, 1), 120)
    end_job(living()[0], signal.SIGUSR2)
    working.join(600)
    assert found[0].finished == 3 and len(STARTED) == 2
    none_doubled(store, range(3), 60)
    assert [outcomes(store, n) for n in range(3)] == [["preempted", "finished"]] * 2 + [["finished"]]


def test_detached_runs_go_on_and_are_taken_in(store):
    enqueue(store, *(make(n, steps=10, step_s=0.1) for n in range(5)))
    go(store, until="submitted", workers=1)
    assert not store.coordinator() and row(store, 4).state is State.RUNNING
    wait_for(lambda: all(any(e["kind"] == "finished" for e in events(store, 1, n)) for n in range(5)), 120)
    wait_for(lambda: not list(store.root.glob("workers/*/taken/*")), 30)
    assert go(store, until="settled", workers=0).finished == 5
    none_doubled(store, range(5), 10)
    assert len(STARTED) == 1


@pytest.mark.nightly
def test_what_no_worker_took_waits_again_and_is_no_failure(store):
    enqueue(store, *(make(n, steps=400, step_s=0.1) for n in range(3)))
    for _ in range(4):  # one more than the allowed number of attempts in a row without a step
        go(store, until="submitted", workers=1)
        wait_for(lambda: under_way_in_last(store, 0, 1), 120)
        for name in living():
            end_job(name, signal.SIGUSR2)
        wait_for(lambda: not living(), 60)
        go(store, until="settled", workers=0)
        assert row(store, 2).state is State.WAITING
        assert row(store, 2).doing == "waits again: no node worker had taken it"


def under_way_in_last(store, *numbers):
    last = {n: store.attempts(f"{n:016x}")[-1] for n in numbers}
    return all(any(e["kind"] == "checkpoint" for e in events(store, last[n], n)) for n in numbers)


@pytest.mark.nightly
def test_cancelled_runs_end_after_a_checkpoint_and_those_that_wait_at_once(store):
    enqueue(store, *(make(n, steps=600, step_s=0.1) for n in range(2)), make(2, steps=6))
    go(store, until="submitted", workers=1)
    wait_for(lambda: under_way(store, 0, 1), 120)
    with Queue(store.queue_db) as queue:
        queue.cancel([f"{n:016x}" for n in (0, 2)])
    working, _ = in_thread(store, workers=1)
    wait_for(lambda: row(store, 0).state is State.CANCELLED and row(store, 2).state is State.CANCELLED, 60)
    assert [e["kind"] for e in events(store, 1, 0)][-1] == "preempted"
    assert not events(store, 1, 2)
    with Queue(store.queue_db) as queue:
        queue.cancel([f"{1:016x}"])
    working.join(600)
    wait_for(lambda: not living(), 30)


@pytest.mark.nightly
def test_a_drained_coordinator_lets_runs_finish_and_ends_its_workers(store):
    enqueue(store, *(make(n, steps=30, step_s=0.1) for n in range(4)))
    working, found = in_thread(store, workers=1)
    wait_for(lambda: under_way(store, 0, 1), 120)
    with Queue(store.queue_db) as queue:
        queue.drain()
    working.join(600)
    assert (found[0].finished, found[0].left) == (2, 2)
    wait_for(lambda: not living(), 30)
    assert go(store, workers=1).finished == 2


def test_setup_lines_are_seen_by_the_runs(store):
    show = "import os, sys; print(os.environ['GREETING'], os.environ['PATH'].split(':')[0], flush=True); "
    show += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    lines = ["export GREETING='good morning'", "greeting() { export PATH=/opt/of/the/node:$PATH; }; greeting"]
    for workers, number in ((1, 1), (0, 2)):
        enqueue(store, make(number))
        engine = on_processes(store, WorkerPool(1, NODE) if workers else None, lines)
        work(store, NODE.slots(1), engine=engine, child=(sys.executable, "-c", show, CHILD[1]))
        log = (store.attempt_folder(f"{number:016x}", 1) / "log.txt").read_text()
        assert log.startswith("good morning /opt/of/the/node\n")
        assert_whole(store, number)


def test_a_setup_line_that_fails_is_said_with_its_output(store):
    enqueue(store, make(1))
    lines = ["echo fine", "echo no such module >&2; ls /nowhere", "echo never"]
    for workers, number in ((1, 1), (0, 2)):
        enqueue(store, make(number))
        assert go(store, workers=workers, setup=lines).failed == 1
        said = row(store, number).error
        assert "--setup 'echo no such module >&2; ls /nowhere' failed on the node" in said and "exit code 2" in said
        assert "no such module\n" in said and "/nowhere" in said and "never" not in said and "ablations retry" in said
    with Queue(store.queue_db) as queue:
        queue.retry([f"{number:016x}" for number in (1, 2)])
    assert go(store).finished == 2, "nothing is lost"


def test_workers_that_cannot_begin_are_said(store, monkeypatch):
    monkeypatch.setattr(worker_pool, "PROGRAM", ("/nowhere/python",))
    enqueue(store, make(1))
    with pytest.raises(UserError, match=r"ended before it began.*does not see the store"):
        go(store, workers=1)
    assert len(STARTED) == worker_pool.TRIES
