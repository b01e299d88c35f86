"""The predicted time of runs whose task predicts no cost, from records with given times."""

from pathlib import Path
from typing import Any

import pytest

from ablations.service import forecast
from ablations.service.enqueue import keep_rows, say_read, say_renewed
from ablations.service.selected import Selected, Selectors, choose
from experiments.errors import UserError
from experiments.events import event_log
from experiments.events.event_log import EventWriter
from experiments.jobs.devices.slots import parse_slots
from experiments.store.checksummed import write_json
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE
from experiments.store.spec import FILE as SPEC
from tests.planned_runs import with_state

STUDY = """
name = "mine"
title = "Mine"
command = "echo {lr}"
seeds = 2
[base]
lr = 1
[[metric]]
name = "acc"
[[variation]]
key = "base"
[[variation]]
key = "fast"
set = {lr = 2}
"""
SLOTS = parse_slots("cpu:1")


@pytest.fixture
def chosen(tmp_path: Path) -> Selected:
    (tmp_path / "mine.toml").write_text(STUDY)
    Store.open(tmp_path / "store")
    return choose(str(tmp_path / "mine.toml"), Selectors(store=tmp_path / "store"))


@pytest.fixture
def attempt(chosen: Selected, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write the next attempt of a run, with the given duration and end."""

    def write(run_id: str, seconds: float, ended: str, train: bool = True) -> int:
        number, folder = chosen.store.new_attempt(run_id)
        write_json(folder / SPEC, {"train": train})
        writer = EventWriter(folder)
        for t, kind in ((1000.0, "started"), (1000.0 + seconds, ended)):
            monkeypatch.setattr(event_log, "record_time", lambda t=t: t)
            writer.emit(
                kind, **({"attempt": number, "after_s": 0.0} if kind == "started" else {"cls": "oom", "message": "why"})
            )
        writer.close()
        return number

    return write


def record(
    chosen: Selected, run_id: str, number: int, wall_s: float, earlier: list[dict[str, Any]] | None = None
) -> None:
    made = {
        "run_id": run_id,
        "task": "command",
        "attempt": number,
        "wall_s": wall_s,
        "device_kind": "cpu",
        "threads": 1,
    }
    write_json(chosen.store.run_folder(run_id) / RESULT_FILE, {**made, "earlier_attempts": earlier or []})


def test_a_run_lasts_as_long_as_the_attempts_that_made_its_present_weights(chosen: Selected, attempt: Any) -> None:
    """Not as long as those that made an earlier training, or that read a log again."""
    first, second = (run for run in chosen.plan.trainings if run.row == "base")
    numbers = [attempt(first.run_id, *ending) for ending in ((40, "finished"), (7, "failed"), (21, "finished"))]
    attempt(first.run_id, 1, "finished", train=False)
    ends = zip(numbers, (40, 7), ("finished", "oom"), strict=False)
    record(chosen, first.run_id, numbers[-1], 20.0, [{"attempt": n, "seconds": s, "ended": e} for n, s, e in ends])
    found = forecast.forecast(chosen, chosen.plan, [second], SLOTS)
    assert found.seconds == {second.run_id: 28.0} and found.of_others == ()


def test_the_median_is_that_of_the_runs_that_train(chosen: Selected, attempt: Any) -> None:
    first, second = (run for run in chosen.plan.trainings if run.row == "base")
    record(chosen, first.run_id, attempt(first.run_id, 21, "finished"), 20.0)
    read = [
        with_state(run, to_read=("e" * 16,), state="finished") for run in chosen.plan.trainings if run.row == "fast"
    ]
    found = forecast.forecast(chosen, chosen.plan, [second, *read], SLOTS)
    assert found.seconds == {second.run_id: 21.0, **dict.fromkeys((run.run_id for run in read), 0)}
    assert "21 s of work (median run 21 s)" in " ".join(forecast.lines(found, SLOTS, "cpu:1"))
    nothing = forecast.forecast(chosen, chosen.plan, read, SLOTS)
    assert nothing.total_s == 0 and "median" not in " ".join(forecast.lines(nothing, SLOTS, "cpu:1"))


def test_one_row_alone_takes_the_time_of_the_other_rows_of_its_study(chosen: Selected, attempt: Any) -> None:
    done = [run for run in chosen.plan.trainings if run.row == "base"]
    for run, seconds in zip(done, (10, 14), strict=True):
        record(chosen, run.run_id, attempt(run.run_id, seconds, "finished"), seconds)
    keep_rows(chosen, chosen.plan, done)
    alone = choose(chosen.study.origin, Selectors(store=chosen.store.root, rows="fast"))
    found = forecast.forecast(alone, alone.plan, alone.plan.trainings, SLOTS)
    assert set(found.seconds.values()) == {12.0}
    assert found.of_others == ("fast",)
    assert "no run of fast has finished" in " ".join(forecast.lines(found, SLOTS, "cpu:1"))


def test_runs_that_train_again_are_not_said_to_be_only_read(chosen: Selected, attempt: Any) -> None:
    runs = chosen.plan.trainings
    for run in runs:
        record(chosen, run.run_id, attempt(run.run_id, 10, "finished"), 10.0)
    read = [with_state(run, state="finished", to_read=tuple(run.eval_ids)) for run in runs]
    stale = [with_state(run, state="stale", stale=("training",)) if run.row == "base" else run for run in read]
    assert "acc (test) of fast: read" in say_read(chosen.plan, stale, "rerun") and "of base" in say_renewed(
        stale, "rerun"
    )
    assert "acc (test) of base, fast: read" in say_read(chosen.plan, stale, "keep")
    for mode, seconds in (("keep", 0.0), ("rerun", 10.0)):
        found = forecast.forecast(chosen, chosen.plan, stale, SLOTS, mode).seconds
        assert {found[run.run_id] for run in stale if run.row == "base"} == {seconds}
        assert {found[run.run_id] for run in stale if run.row == "fast"} == {0.0}


def test_a_value_of_the_wrong_type_is_said_once(chosen: Selected) -> None:
    Path(chosen.study.origin).write_text(STUDY.replace("set = {lr = 2}", 'set = {lr = "2"}'))
    with pytest.raises(UserError) as caught:
        _ = choose(chosen.study.origin, Selectors(store=chosen.store.root)).plan
    assert str(caught.value).count("lr =") == 1 and "expected a number" in str(caught.value)
