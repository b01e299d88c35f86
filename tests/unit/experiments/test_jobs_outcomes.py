"""The state of a job after an attempt, for each class of failure. No job is retried forever."""

import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.config.training import SMALLEST_MICRO_BATCH
from experiments.jobs.attempts.attempt_progress import AttemptProgress
from experiments.jobs.attempts.outcomes import LONG_S, MAX_STALLS, decide
from experiments.jobs.queue.job import Claimed, Outcome, State
from tests.made_jobs import made_job

JOB = made_job("0" * 16, "stub", {"training": {"train_steps": 100, "tokens_per_batch": 1000}})
WANTED = ["training", "e1"]


def after(events, code, missing=WANTED, expected=WANTED, claimed=None, **more):
    record = AttemptProgress()
    for event in events:
        record.take({"t": 0.0, **event})
    claimed = claimed or Claimed(JOB, 1, {}, 0, 0)
    return decide(claimed, record, code, missing, expected=expected, **more)


def event(kind, **fields):
    return {"t": 0.0, "kind": kind, **fields}


@pytest.mark.parametrize("code", [0, 1, 3, -9, None])
def test_all_in_place_is_finished_however_the_child_ended(code):
    assert after([], code, missing=[]).state is State.FINISHED


@pytest.mark.parametrize("code", [-signal.SIGKILL, -signal.SIGSEGV, 128 + signal.SIGTERM, None])
def test_a_killed_child_goes_on_from_its_checkpoint(code):
    ending = after([event("checkpoint", step=4)], code)
    assert (ending.state, ending.outcome, ending.stalls, ending.best) == (State.WAITING, Outcome.KILLED, 0, 4)


@pytest.mark.parametrize(
    ("events", "detail"),
    [
        (
            [event("checkpoint", step=4), event("preempted", step=4)],
            "will resume, because it was stopped after a checkpoint",
        ),
        ([event("metrics", step=4), event("preempted")], "will start again, because it was stopped"),
        ([event("trained", step=9), event("preempted")], "will resume, because it was stopped"),
    ],
)
def test_what_is_said_of_a_stop_names_a_checkpoint_only_where_one_was_made(events, detail):
    assert after(events, 3, asked="stop").detail == detail


def test_three_ends_without_a_new_checkpoint_fail_and_say_how():
    claimed = Claimed(JOB, 1, {}, 4, 0)
    for stalls in range(1, MAX_STALLS + 1):
        ending = after([event("checkpoint", step=4)], -9, claimed=claimed, log_tail="the log", limit_gb=0.2)
        assert ending.stalls == stalls
        claimed = Claimed(JOB, 1, {}, ending.best, ending.stalls)
    assert ending.state is State.FAILED
    assert "SIGKILL" in ending.error and "the log" in ending.error
    assert "The run may use 0.2 GB (--devices): a higher limit may help." in ending.error


def test_a_new_checkpoint_or_a_completed_part_starts_the_count_again():
    stalled = Claimed(JOB, 1, {}, 4, MAX_STALLS - 1)
    assert after([event("checkpoint", step=6)], -9, claimed=stalled).stalls == 0
    assert after([event("evaluated", eval_id="e1")], -9, claimed=stalled).stalls == 0
    assert after([event("metrics", step=99)], -9, claimed=stalled).state is State.FAILED


def test_attempts_that_reach_one_step_more_each_are_capped_like_those_that_reach_none():
    claimed = Claimed(JOB, 1, {}, 0, 0)
    for attempt in range(1, MAX_STALLS + 1):
        ending = after([event("preempted"), event("checkpoint", step=attempt)], 3, claimed=claimed)
        claimed = Claimed(JOB, 1, {}, ending.best, ending.stalls)
    assert (ending.state, ending.best) == (State.FAILED, MAX_STALLS)


def test_one_step_of_a_long_attempt_is_progress():
    """A step may take as long as an epoch, and the cluster's time limit may be an hour."""
    stalled = Claimed(JOB, 1, {}, 4, MAX_STALLS - 1)
    lasted = [event("started", t=0.0), event("checkpoint", step=5, t=LONG_S)]
    assert after(lasted, 3, claimed=stalled).stalls == 0


@given(st.lists(st.integers(0, 6), max_size=40))
def test_no_run_is_tried_for_ever(saved):
    """With at most `train_steps` checkpoints to reach, the number of attempts is bounded."""
    claimed, attempts = Claimed(JOB, 1, {}, 0, 0), 0
    for step in [*saved, 6, 6, 6, 6]:
        ending = after([event("checkpoint", step=step)] if step else [], -9, claimed=claimed)
        attempts += 1
        if ending.state is State.FAILED:
            break
        claimed = Claimed(JOB, 1, {}, ending.best, ending.stalls)
    assert ending.state is State.FAILED
    assert attempts <= MAX_STALLS * 7 + MAX_STALLS


def test_stopped_by_the_coordinator_does_not_count():
    ending = after([event("preempted", step=0)], 3, claimed=Claimed(JOB, 1, {}, 0, MAX_STALLS - 1), asked="stop")
    assert (ending.state, ending.outcome, ending.stalls) == (State.WAITING, Outcome.PREEMPTED, MAX_STALLS - 1)


def test_cancelled_stays_cancelled():
    assert after([event("preempted", step=4)], 3, asked="cancel").state is State.CANCELLED
    assert after([], -9, asked="cancel").state is State.CANCELLED


@pytest.mark.parametrize("cls", ["user_error", "diverged", "bug", "something new"])
def test_what_would_only_happen_again_fails_at_once(cls):
    ending = after([event("failed", cls=cls, message="loss is NaN at step 7")], 1, log_tail="the log")
    assert ending.state is State.FAILED
    assert ending.error.startswith("loss is NaN at step 7")
    assert ("the log" in ending.error) == (cls != "user_error")  # a user's mistake is one clear paragraph


def test_an_exit_code_without_a_word_is_a_bug_with_the_logs_tail():
    ending = after([event("started")], 7, log_tail="ImportError: no torch")
    assert (ending.state, ending.outcome) == (State.FAILED, Outcome.BUG)
    assert "exit code 7" in ending.error and "ImportError" in ending.error


def test_out_of_memory_halves_the_micro_batch_then_takes_a_device_alone_then_fails():
    claimed, sizes = Claimed(JOB, 1, {"threads": 2}, 0, 0), []
    for _ in range(5):
        ending = after([event("failed", cls="out_of_memory", message="no room")], 1, claimed=claimed)
        if ending.state is State.FAILED:
            break
        sizes.append((ending.pinned["micro_batch_tokens"], ending.alone))
        assert ending.pinned["threads"] == 2
        claimed = Claimed(JOB, 1, ending.pinned, ending.best, ending.stalls, alone=ending.alone)
    assert sizes == [(500, False), (250, False), (125, False), (125, True)]
    assert sizes[-1][0] // 2 < SMALLEST_MICRO_BATCH
    assert "Out of memory" in ending.error


def test_out_of_memory_begins_with_what_cuts_a_batch():
    """A GPU's limit of 32,768 is far above a batch of 1,000, so half of the limit would split nothing."""
    ran_out = event("failed", cls="out_of_memory", message="no room")
    assert after([event("pinned", micro_batch_tokens=32768), ran_out], 1).pinned["micro_batch_tokens"] == 750
    assert after([event("pinned", micro_batch_tokens=400), ran_out], 1).pinned["micro_batch_tokens"] == 200


def test_shapes_of_larger_micro_batches_go_with_them():
    pinned = event("pinned", micro_batch_tokens=400, shapes=[[10, 20, 20], [1, 50, 50]], threads=2)
    assert after([pinned], -9).pinned["shapes"] == [[10, 20, 20], [1, 50, 50]]
    ran_out = event("failed", cls="out_of_memory", message="no room")
    assert after([pinned, ran_out], 1).pinned == {"micro_batch_tokens": 200, "threads": 2}


def test_out_of_memory_on_a_shared_gpu_takes_it_alone_before_smaller_micro_batches():
    ran_out = [event("failed", cls="out_of_memory", message=OTHERS)]
    beside = after(ran_out, 1, shared=True)
    assert (beside.state, beside.alone, beside.pinned) == (State.WAITING, True, {})
    alone = after(
        [event("failed", cls="out_of_memory", message="no room")], 1, claimed=Claimed(JOB, 1, {}, 0, 0, alone=True)
    )
    assert (alone.alone, alone.pinned) == (True, {"micro_batch_tokens": 500})


OTHERS = (
    "CUDA out of memory. Tried to allocate 138.00 MiB. GPU 0 has a total capacity of 79.10 GiB of which 8.44 MiB is "
    "free. Process 1246069 has 57.25 GiB memory in use. Including non-PyTorch memory, this process has 21.32 GiB "
    "memory in use. Of the allocated memory 20.12 GiB is allocated by PyTorch."
)


def test_memory_that_others_hold_is_no_reason_for_smaller_micro_batches():
    """The message is torch's (c10/cuda/CUDACachingAllocator.cpp)."""
    ran_out = [event("failed", cls="out_of_memory", message=OTHERS)]
    first = after(ran_out, 1)
    assert (first.state, first.pinned, first.hangs) == (State.WAITING, {}, 1)
    assert "other processes used 57.2 GiB of the GPU's memory" in first.detail
    again = after(ran_out, 1, claimed=Claimed(JOB, 2, {}, 0, 0, hangs=1))
    assert again.pinned == {"micro_batch_tokens": 500}, "they have stayed"
    few = OTHERS.replace("57.25", "0.57")
    assert after([event("failed", cls="out_of_memory", message=few)], 1).pinned == {"micro_batch_tokens": 500}


def test_a_device_that_fails_is_tried_again_once():
    failed = [event("failed", cls="device", message="CUDA error: uncorrectable ECC error encountered")]
    first = after(failed, 1)
    assert (first.state, first.outcome, first.hangs) == (State.WAITING, Outcome.DEVICE, 1)
    again = after(failed, 1, claimed=Claimed(JOB, 2, {}, 0, 0, hangs=1))
    assert (again.state, again.outcome) == (State.FAILED, Outcome.DEVICE)
    assert again.error.startswith("The device failed 2 times: CUDA error: uncorrectable ECC error")


def test_out_of_memory_starts_from_what_the_child_used():
    ending = after([event("failed", cls="out_of_memory", message="", micro_batch_tokens=300)], 1)
    assert ending.pinned["micro_batch_tokens"] == 150


@pytest.mark.parametrize(
    ("events", "code"), [([event("failed", cls="disk_full", message="no space left")], 4), ([event("started")], 4)]
)
def test_a_full_disk_lets_the_job_wait_whether_or_not_the_child_could_say_so(events, code):
    ending = after(events, code, claimed=Claimed(JOB, 1, {}, 0, MAX_STALLS - 1))
    assert (ending.state, ending.outcome) == (State.WAITING, Outcome.DISK_FULL)
    assert "space left" in ending.detail


def test_hung_once_is_tried_again_hung_twice_in_a_row_fails():
    first = after([event("checkpoint", step=4)], -9, asked="hung")
    assert (first.state, first.outcome, first.hangs, first.best) == (State.WAITING, Outcome.HUNG, 1, 4)
    again = after([event("checkpoint", step=9)], None, asked="hung", claimed=Claimed(JOB, 2, {}, 4, 0, hangs=1))
    assert (again.state, again.outcome) == (State.FAILED, Outcome.HUNG)
    between = after([], -9, claimed=Claimed(JOB, 2, {}, 4, 0, hangs=1))
    assert between.hangs == 0


def test_hung_after_its_last_result_is_finished():
    assert after([event("finished")], -9, missing=[], asked="hung").state is State.FINISHED


def test_the_time_left_follows_the_steps_between_two_points():
    record = AttemptProgress()
    assert record.left_s(100) is None
    record.take({"t": 10.0, "kind": "metrics", "step": 20})
    record.take({"t": 15.0, "kind": "metrics", "step": 30})
    assert record.left_s(100) == pytest.approx(35.0)
    assert record.left_s(None) is None


def test_ended_well_but_left_nothing_is_a_bug():
    ending = after([event("trained", step=100), event("finished")], 0, missing=["e1"])
    assert (ending.state, ending.outcome) == (State.FAILED, Outcome.BUG)
    assert "e1" in ending.error


def test_what_was_asked_for_meanwhile_waits_for_another_attempt():
    ending = after([event("trained", step=100), event("finished")], 0, missing=["e2"])
    assert (ending.state, ending.error) == (State.WAITING, "")


def test_what_the_first_attempt_resolved_is_pinned():
    ending = after([event("pinned", precision="bf16"), event("checkpoint", step=2)], -9)
    assert ending.pinned == {"precision": "bf16"}


def test_a_record_follows_the_story():
    record = AttemptProgress()
    for one in (event("started"), event("resumed", step=4), event("metrics", t=1.0, step=5, metrics={"loss": 1.0})):
        record.take(one)
    assert (record.first_step, record.step, record.doing) == (4, 5, "training")
    for one in (event("trained", step=9), event("progress", what="decoding dev", done=3.0, total=8.0)):
        record.take(one)
    assert (record.step, record.doing) == (9, "decoding dev 3/8")


def test_out_of_memory_in_an_evaluation_asks_for_a_device_at_once():
    """A smaller micro-batch does not help an evaluation."""
    ran_out = event("failed", cls="out_of_memory", message="no room")
    for events, expected in (([event("trained", step=100), ran_out], WANTED), ([ran_out], ["e" * 16])):
        ending = after(events, 1, missing=["e" * 16], expected=expected)
        assert (ending.state, ending.alone, "micro_batch_tokens" in ending.pinned) == (State.WAITING, True, False)
        alone = Claimed(JOB, 1, {}, 0, 0, alone=True)
        assert after(events, 1, missing=["e" * 16], expected=expected, claimed=alone).state is State.FAILED


def test_what_was_withdrawn_before_it_began_is_as_before():
    claimed = Claimed(JOB, 1, {"kind": "cuda"}, 4, MAX_STALLS - 1, alone=True, hangs=1)
    ending = after([], None, claimed=claimed, withdrawn="no node worker had taken it")
    assert (ending.state, ending.detail) == (State.WAITING, "waits again: no node worker had taken it")
    assert (ending.stalls, ending.hangs, ending.alone, ending.best) == (MAX_STALLS - 1, 1, True, 4)
    assert after([], None, asked="cancel", withdrawn="x").state is State.CANCELLED
