"""Make, run and inspect stub runs, for tests of the coordinator."""

import itertools
import sys
import threading
import time
from pathlib import Path

from experiments.events.event_log import read_events
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue.job import Member, State
from experiments.jobs.queue.queue import Queue
from tests.made_jobs import evaluation, made_job

STUB = Path(__file__).parent.parent / "stub_child.py"
ROOT = STUB.parent.parent
CHILD = (sys.executable, str(STUB))
SLOTS = [Slot("cpu:0", "cpu", 1), Slot("cpu:1", "cpu", 1)]
STEPS = 6
EVALUATION = "e" * 16


def make(number=1, attempts=None, steps=STEPS, evaluate=True, step_s=0.0, **more):
    run_id = f"{number:016x}"
    stub = {"step_s": step_s, "checkpoint_steps": 2, "attempts": attempts or {}}
    config = {"training": {"train_steps": steps, "tokens_per_batch": 1000}, "stub": stub}
    evaluations = (evaluation(EVALUATION),) if evaluate else ()
    members = (Member("s", "p", "c", str(number)),)
    return made_job(run_id, "stub", config, evaluations=evaluations, **{"members": members, "steps": steps, **more})


def enqueue(store, *jobs):
    queue = Queue(store.queue_db)
    queue.enqueue(jobs)
    queue.close()


def go(store, *jobs, slots=SLOTS, **more):
    """Queue the jobs, work until none is left, and return the summary."""
    enqueue(store, *jobs)
    return work(store, slots, engine=LocalEngine(()), child=CHILD, **more)


def row(store, number=1):
    queue = Queue(store.queue_db)
    found = {r.run_id: r for r in queue.status()}[f"{number:016x}"]
    queue.close()
    return found


def outcomes(store, number=1):
    queue = Queue(store.queue_db)
    found = [attempt["outcome"] for attempt in queue.history(f"{number:016x}")]
    queue.close()
    return found


def events(store, attempt, number=1):
    return read_events(store.attempt_folder(f"{number:016x}", attempt))


def resumed_at(store, attempt, number=1):
    return [e["step"] for e in events(store, attempt, number) if e["kind"] == "resumed"]


def assert_whole(store, number=1, steps=STEPS):
    """Check that the result equals that of an undisturbed run: no step is lost or repeated."""
    result = store.result(f"{number:016x}")
    assert result.content["sum"] == steps * (steps + 1) // 2
    assert store.evaluation(f"{number:016x}", EVALUATION).metrics == {"bleu": 30.5}
    assert row(store, number).state is State.FINISHED


def none_doubled(store, numbers, steps):
    """Check that every run has one complete result, and that each attempt resumed from the last checkpoint."""
    for number in numbers:
        assert_whole(store, number, steps=steps)
        begun = [n for n in store.attempts(f"{number:016x}") if events(store, n, number)]
        assert sum(any(e["kind"] == "trained" for e in events(store, n, number)) for n in begun) == 1
        for before, after in itertools.pairwise(begun):
            saved = [e["step"] for e in events(store, before, number) if e["kind"] == "checkpoint"]
            [resumed] = resumed_at(store, after, number)
            assert resumed in (saved[-1], saved[-1] + 2), "the last one, though killed before it could say so"


def in_thread(store, *jobs, **more):
    enqueue(store, *jobs)
    thread = threading.Thread(target=go, args=(store,), kwargs=more)
    thread.start()
    return thread


def wait_for(condition, patience_s=300.0):
    until = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)
