"""Tests of an attempt's starting point, and of the data that it takes over from earlier attempts."""

from dataclasses import replace
from pathlib import Path

import pytest

from experiments.device_spec import DeviceSpec
from experiments.events.event_log import EventWriter, Tail
from experiments.jobs.attempts.attempt import prepare_attempt
from experiments.jobs.attempts.attempt_progress import AttemptProgress
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.engine import Engine
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue.job import Claimed
from experiments.run_spec import RunSpec
from experiments.store.layout import Store
from experiments.store.spec import AttemptSpec
from tests.made_jobs import evaluation, made_job

RUN = "a" * 16
SMALLER = {"kind": "cpu", "threads": 1, "devices": 1, "micro_batch_tokens": 500}
OUT = {"cls": "out_of_memory", "message": "", "traceback": ""}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store")


@pytest.fixture
def engine() -> Engine:
    return LocalEngine(fork=False)


def former(store: Store, *, code: str | None, cls: str = "out_of_memory") -> int:
    """Make a failed attempt that announced its code before, or (with None) did not."""
    number, folder = store.new_attempt(RUN)
    events = EventWriter(folder)
    if code is not None:
        events.emit("started", attempt=number, after_s=0.0, code_digest=code)
    events.emit("failed", **{**OUT, "cls": cls})
    events.close()
    return number


def micro_batch(store: Store, engine: Engine, rerun_after: int = 0, code: str = "new") -> int | None:
    """Return the pinned micro-batch of the next attempt after the failure."""
    claimed = Claimed(made_job(RUN, rerun_after=rerun_after), 1, SMALLER, 0, 0)
    attempt = store.new_attempt(RUN)
    slot = Slot("cpu:0", "cpu")
    prepared = prepare_attempt(store, engine, ["child"], claimed, attempt, slot, ["training"], code)
    pinned: int | None = prepared.live.claimed.pinned.get("micro_batch_tokens")
    return pinned


def test_memory_that_ran_out_before_the_code_was_announced_is_not_retried_alike_for_ever(store, engine):
    former(store, code=None)
    assert micro_batch(store, engine) == 500


def test_a_kill_in_between_does_not_begin_the_search_again(store, engine):
    former(store, code=None)
    store.new_attempt(RUN)  # killed before its first event
    assert micro_batch(store, engine) == 500


def test_other_code_begins_with_the_whole_batch_again(store, engine):
    former(store, code="old")
    assert micro_batch(store, engine) is None


def test_the_same_code_goes_on_with_smaller_micro_batches(store, engine):
    former(store, code="new")
    assert micro_batch(store, engine) == 500


def test_a_rerun_takes_no_settings_over(store, engine):
    number = former(store, code=None)
    assert micro_batch(store, engine, rerun_after=number) is None


def test_another_failure_before_the_code_was_announced_keeps_nothing(store, engine):
    former(store, code="old")
    former(store, code=None, cls="bug")
    assert micro_batch(store, engine) is None


def test_a_rerun_is_a_new_training_also_after_an_attempt_that_only_scored(store, engine):
    """Attempt 1 is the stale training. Attempt 2 only scored it again, so there is nothing in it to resume from."""
    for number, train in ((1, True), (2, False)):
        _, folder = store.new_attempt(RUN)
        spec = AttemptSpec(
            RunSpec(RUN, {}, {}), str(store.root), number, DeviceSpec(),
            train=train, evaluations=() if train else (evaluation("e"),),
        )  # fmt: skip
        spec.write(folder)
        events = EventWriter(folder)
        events.emit("started", attempt=number, after_s=0.0, code_digest="new")
        events.emit("finished")
        events.close()
    micro_batch(store, engine, rerun_after=1)
    first = next(iter(Tail(store.attempt_folder(RUN, 3)).read()))
    assert (first["kind"], first["earlier"]) == ("restarted", [1, 2])


def test_the_time_left_is_that_of_the_steps_left_at_the_speed_since_the_first_point():
    progress = AttemptProgress(doing="training", first_point=(10, 100.0), last_point=(30, 140.0))
    assert progress.left_s(130) == 2.0 * 100 and progress.left_s(30) == 0.0 == progress.left_s(20)
    assert progress.left_s(None) is None and replace(progress, total=40).left_s(None) == 20.0
    assert replace(progress, doing="evaluating").left_s(130) is None
    assert replace(progress, last_point=None).left_s(130) is None is replace(progress, first_point=None).left_s(130)
    assert replace(progress, last_point=(10, 140.0)).left_s(130) is None
    assert progress.speed(1000.0, 100) == 1000 * 20 / 100 / 40
    assert progress.speed(0.0, 100) is None is progress.speed(1000.0, None)
