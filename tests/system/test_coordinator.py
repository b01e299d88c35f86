"""The coordinator with a stub child: for every kind of ending, no result is lost or duplicated."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import psutil
import pytest

from experiments.errors import UserError
from experiments.events.event_log import FILE, content_of, damaged_events
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store.checksummed import read_json
from experiments.store.layout import Store

from .stub_store import (
    EVALUATION,
    ROOT,
    assert_whole,
    events,
    go,
    in_thread,
    make,
    outcomes,
    resumed_at,
    row,
    wait_for,
)


@pytest.fixture
def store(tmp_path):
    return Store.open(tmp_path / "store")


def test_runs_train_evaluate_and_finish(store):
    summary = go(store, *(make(i) for i in range(5)))
    assert (summary.finished, summary.failed, summary.interrupted) == (5, 0, 0)
    for number in range(5):
        assert_whole(store, number)
        assert outcomes(store, number) == ["finished"]


def test_a_second_time_nothing_runs(store):
    go(store, make())
    summary = go(store, make())
    assert summary.finished == 1
    assert store.attempts(make().run_id) == [1]


def test_another_evaluation_does_not_train_again(store):
    go(store, make(evaluate=False))
    go(store, make(train=False))
    assert [e["kind"] for e in events(store, 2)] == ["started", "evaluated", "finished"]
    assert_whole(store)


@pytest.mark.parametrize("at", [3, "result", "evaluation"])
def test_a_killed_child_goes_on_where_it_was(store, at):
    go(store, make(attempts={"1": {"at": at, "do": "kill"}}))
    assert_whole(store)
    assert outcomes(store) == ["killed", "finished"]
    assert resumed_at(store, 2) == {3: [2], "result": [6], "evaluation": []}[at]


def test_three_kills_without_a_new_checkpoint_fail_with_the_logs_tail(store):
    summary = go(store, make(attempts={str(n): {"at": 3, "do": "kill"} for n in range(1, 9)}))
    assert summary.failed == 1
    assert outcomes(store) == ["killed"] * 4  # the first attempt advanced the run from step 0 to step 2
    assert "SIGKILL" in row(store).error and "stub at work" in row(store).error and "log.txt" in row(store).error


@pytest.mark.parametrize("cls", ["user_error", "diverged", "bug"])
def test_what_would_only_happen_again_is_tried_once(store, cls):
    summary = go(store, make(1, attempts={"1": {"at": 3, "do": cls}}), make(2))
    assert (summary.failed, summary.finished) == (1, 1)
    assert (row(store).state, row(store).error_class) == (State.FAILED, cls)
    assert f"stub says {cls}" in row(store).error
    assert outcomes(store) == [cls]


@pytest.mark.parametrize(("do", "word"), [("exit", "exit code 7"), ("lie", "did not produce: training")])
def test_a_child_that_does_not_say_why_is_a_bug(store, do, word):
    go(store, make(attempts={"1": {"at": 3, "do": do}}))
    assert row(store).state is State.FAILED
    assert word in row(store).error and "stub at work" in row(store).error


def test_out_of_memory_is_tried_with_a_smaller_micro_batch_and_recorded(store):
    oom = {"at": 3, "do": "out_of_memory"}
    go(store, make(attempts={"1": oom, "2": oom}))
    assert_whole(store)
    assert outcomes(store) == ["out_of_memory", "out_of_memory", "finished"]
    assert store.result(make().run_id).pinned["micro_batch_tokens"] == 250


def test_retry_goes_on_from_the_checkpoint(store):
    go(store, make(attempts={"1": {"at": 3, "do": "bug"}}))
    queue = Queue(store.queue_db)
    assert queue.retry([make().run_id]) == 1
    queue.close()
    go(store)
    assert_whole(store)
    assert resumed_at(store, 2) == [2]


def test_cancel_from_another_process_ends_the_child_after_a_checkpoint(store):
    thread = in_thread(store, make(1, steps=10_000, step_s=0.01), make(2))
    wait_for(lambda: any(e["kind"] == "checkpoint" for e in events(store, 1)))
    queue = Queue(store.queue_db)
    assert queue.cancel([make().run_id]) == 1
    queue.close()
    thread.join(300)
    assert not thread.is_alive()
    assert row(store).state is State.CANCELLED
    assert_whole(store, 2)


def test_queued_while_it_works_is_done_too_and_joined_wishes_are_served(store):
    thread = in_thread(store, make(1, steps=40, step_s=0.02, evaluate=False))
    wait_for(lambda: events(store, 1))
    queue = Queue(store.queue_db)
    queue.enqueue([make(1, steps=40), make(2)])
    queue.close()
    thread.join(300)
    assert_whole(store, 1, steps=40)
    assert_whole(store, 2)
    assert outcomes(store) == ["finished", "finished"]


def test_a_second_coordinator_is_refused_by_name(store):
    thread = in_thread(store, make(steps=150, step_s=0.02))  # runs longer than a coordinator waits for a lock
    wait_for(lambda: events(store, 1))
    with pytest.raises(UserError, match=f"process {os.getpid()}"):
        go(store)
    thread.join(300)
    assert_whole(store, steps=150)


def test_progress_is_shown_and_kept(store):
    seen = []
    go(store, make(steps=60, step_s=0.02), on_progress=seen.append)
    assert seen[-1].counts[State.FINISHED] == 1
    steps = [live.progress.step for view in seen for live in view.running if live.progress.step]
    assert steps and steps == sorted(steps)


def test_a_broken_store_of_results_is_not_hidden(store):
    """A user must repair a damaged result.json. The run is not trained again without a request."""
    go(store, make())
    (store.run_folder(make().run_id) / "result.json").write_text("{")
    assert go(store, make()).failed == 1
    assert "result.json is damaged" in row(store).error
    assert store.attempts(make().run_id) == [1]


def test_damaged_lines_are_counted_while_they_are_read_and_found_later(store):
    thread = in_thread(store, make(steps=40, step_s=0.02))
    wait_for(lambda: events(store, 1))
    path = store.attempt_folder(make().run_id, 1) / FILE
    with path.open("ab") as file:
        file.write(b'{"kind": "metrics", "step": 3}\n' + b"[" * 5000 + b"\n")
    thread.join(300)
    assert_whole(store, steps=40)
    work_queue = WorkQueue(store.queue_db)
    known = work_queue.damaged_lines()
    work_queue.close()
    assert known == {(make().run_id, 1): (content_of(path.parent), 2)}
    with path.open("ab") as file:
        file.write(b"rubbish\n")
    [(_, _, line)] = damaged_events(store, known)
    assert line.startswith("3 damaged lines")


class StubTask:
    """A task with only the planning methods that the coordinator uses."""

    class config_type:  # noqa: N801
        @staticmethod
        def from_mapping(values):
            return values

    def __init__(self, fail=None):
        self.prepared, self.fail = [], fail

    def training_code(self, store):
        return "c1"

    def prepare(self, config, store, progress):
        progress("encoding", 1, 2)
        self.prepared.append(config)
        time.sleep(0.1)
        if self.fail:
            raise self.fail
        return {}


def with_digest(job, digest):
    job.spec.config["stub"]["code_digest"] = digest
    return job


def test_a_corpus_is_prepared_once_before_its_runs(store):
    task = StubTask()
    go(store, *(with_digest(make(i), "c1") for i in range(4)), task_of=lambda run: task)
    assert len(task.prepared) == 1
    for number in range(4):
        assert_whole(store, number)


@pytest.mark.parametrize(
    ("error", "cls"), [(UserError("vocabulary too large"), "user_error"), (ValueError("oh"), "bug")]
)
def test_a_corpus_that_cannot_be_prepared_fails_its_runs(store, error, cls):
    summary = go(store, make(1), make(2), task_of=lambda run: StubTask(error))
    assert summary.failed == 2
    assert row(store).error_class == cls and str(error) in row(store).error
    assert store.attempts(make().run_id) == []


def test_a_task_that_cannot_be_loaded_fails_its_runs(store):
    def task_of(run):
        raise UserError(f"There is no task {run.task!r}.")

    assert go(store, make(), task_of=task_of).failed == 1
    assert "no task 'stub'" in row(store).error


def test_no_run_goes_on_half_old_half_new(store, monkeypatch):
    digest = ["old"]
    monkeypatch.setattr("experiments.jobs.coordinator.placement.Placement._code_digest", lambda self, task: digest[0])
    go(store, with_digest(make(attempts={"1": {"at": 3, "do": "bug"}}), "old"))
    digest[0] = "new"
    go(store, with_digest(make(), "new"))
    assert_whole(store)
    restarted = [e for e in events(store, 2) if e["kind"] == "restarted"]
    assert resumed_at(store, 2) == []
    assert "code has changed" in restarted[0]["why"] and restarted[0]["earlier"] == [1]


def test_a_stale_run_is_trained_anew_when_asked(store, monkeypatch):
    go(store, make())
    go(store, make(rerun_after=1))
    assert store.result(make().run_id).attempt == 2
    assert store.evaluation(make().run_id, EVALUATION).attempt == 2
    assert next(e["kind"] for e in events(store, 2)) == "restarted"


# The tests below kill coordinators, which therefore run in separate processes.

PROGRAM = """
    import sys
    from tests.system.stub_store import *
    from experiments.jobs.coordinator.work import work
    from experiments.store.layout import Store
    summary = work(Store.open({store!r}), SLOTS, engine=LocalEngine(()), child=CHILD)
    sys.exit(128 + summary.interrupted if summary.interrupted else 0)
"""


def coordinator(store, *jobs):
    queue = Queue(store.queue_db)
    queue.enqueue(jobs)
    queue.close()
    program = textwrap.dedent(PROGRAM).format(store=str(store.root))
    return subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, start_new_session=True
    )


def long(number):
    return make(number, steps=100, step_s=0.02)


def pids(store, attempt, *numbers):
    return [e["pid"] for n in numbers for e in events(store, attempt, n) if e["kind"] == "started"]


def under_way(store, *numbers):
    """Return whether every run has saved a checkpoint."""
    return all(any(e["kind"] == "checkpoint" for e in events(store, 1, n)) for n in numbers)


def test_kill_9_of_the_coordinator_loses_and_doubles_nothing(store):
    process = coordinator(store, *(long(n) for n in range(3)))
    wait_for(lambda: under_way(store, 0, 1))
    process.kill()
    process.wait()
    assert row(store, 0).state is State.RUNNING
    go(store)  # immediately, while the orphaned children may still be alive
    for number in range(3):
        assert_whole(store, number, steps=100)
        trained = [
            e for a in store.attempts(f"{number:016x}") for e in events(store, a, number) if e["kind"] == "trained"
        ]
        assert len(trained) == 1
    assert resumed_at(store, 2, 0)[0] >= 2 and resumed_at(store, 2, 1)[0] >= 2


def test_kill_9_of_coordinator_and_children(store):
    process = coordinator(store, long(0), long(1))
    wait_for(lambda: under_way(store, 0, 1))
    process.kill()
    process.wait()
    for pid in pids(store, 1, 0, 1):
        os.kill(pid, signal.SIGKILL)
    summary = go(store)
    assert summary.finished == 2
    for number in range(2):
        assert_whole(store, number, steps=100)
        assert resumed_at(store, 2, number)[0] >= 2


def test_orphans_end_by_themselves_after_a_checkpoint(store):
    process = coordinator(store, long(0), long(1))
    wait_for(lambda: under_way(store, 0, 1))
    process.kill()
    process.wait()
    wait_for(lambda: not any(psutil.pid_exists(pid) for pid in pids(store, 1, 0, 1)))
    assert [e["kind"] for e in events(store, 1, 0)][-1] == "preempted"


@pytest.mark.parametrize("written", [None, "", '{"store": "/ru'])
def test_dying_between_the_claim_and_the_childs_start(store, written):
    queue = Queue(store.queue_db)
    queue.enqueue([make()])
    number, folder = store.new_attempt(make().run_id)
    queue.close()
    work_queue = WorkQueue(store.queue_db)
    assert work_queue.claim(make().run_id, number, "cpu:0", "cpu")
    work_queue.close()
    if written is not None:
        (folder / "spec.json").write_text(written)
    go(store)
    assert_whole(store)


def test_dying_between_the_childs_end_and_the_promotion(store):
    """If the child has finished but its result was not moved, the next coordinator moves it without training."""
    process = coordinator(store, make(0, steps=20, step_s=0.02))
    wait_for(lambda: events(store, 1, 0))
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: any(e["kind"] == "finished" for e in events(store, 1, 0)))
    process.kill()
    process.wait()
    assert store.result(f"{0:016x}") is None
    go(store)
    assert_whole(store, 0, steps=20)
    assert store.attempts(f"{0:016x}") == [1]


def test_a_lost_queue_costs_no_training(store):
    process = coordinator(store, make(0, steps=20, step_s=0.02))
    wait_for(lambda: events(store, 1, 0))
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: any(e["kind"] == "finished" for e in events(store, 1, 0)))
    process.kill()
    process.wait()
    for path in store.state_dir.glob("queue.db*"):
        path.unlink()
    go(store, make(0, steps=20))
    assert_whole(store, 0, steps=20)
    assert store.attempts(f"{0:016x}") == [1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_saves_a_checkpoint_and_the_next_work_goes_on(store, number):
    process = coordinator(store, long(0), long(1), long(2))
    wait_for(lambda: under_way(store, 0, 1))
    process.send_signal(number)
    assert process.wait(300) == 128 + number
    assert [row(store, n).state for n in range(3)] == [State.WAITING] * 3
    assert outcomes(store, 0) == ["preempted"]
    assert [e["kind"] for e in events(store, 1, 0)][-1] == "preempted"
    go(store)
    for n in range(3):
        assert_whole(store, n, steps=100)
    assert resumed_at(store, 2, 0)[0] >= 2


def test_the_second_signal_leaves_at_once(store):
    deaf = make(0, attempts={"1": {"at": 2, "do": "deaf"}}, steps=10_000, step_s=0.02)
    process = coordinator(store, deaf)
    # the child now ignores SIGTERM
    wait_for(lambda: any(e["kind"] == "metrics" and e["step"] > 2 for e in events(store, 1, 0)))
    child = psutil.Process(pids(store, 1, 0)[0])
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None and child.is_running()
    process.send_signal(signal.SIGINT)
    assert process.wait(300) == 128 + signal.SIGINT
    wait_for(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
    assert row(store, 0).state is State.WAITING


def test_the_spec_says_what_a_child_needs(store):
    go(store, make(attempts={"1": {"at": 3, "do": "kill"}}))
    spec = read_json(store.attempt_folder(make().run_id, 2) / "spec.json")
    assert spec["earlier"] == [f"runs/{make().run_id}/attempts/0001"]  # a relative path, because a store can be moved
    assert spec["device"] == {"kind": "cpu", "threads": 1, "memory_gb": None, "count": 1, "share": 1.0}
    assert spec["coordinator"]["pid"] == os.getpid()
    assert spec["train"] is True and [e["eval_id"] for e in spec["evaluations"]] == [EVALUATION]
