"""`--devices cpu:auto`: the measured row, the remembered result, refusals."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from ablations.service import train as sharing
from experiments.errors import UserError
from experiments.jobs.attempts.probe import Measured, kept
from experiments.store.layout import Store


def run(row: str, cost: float, seed: int = 1) -> Any:
    config = SimpleNamespace(model_dump=lambda mode: {"row": row, "seed": seed})
    return SimpleNamespace(run_id=f"{row}{seed}", row=row, cost=cost, config=config, members=())


@pytest.mark.parametrize(
    ("costs", "expected"), [([5.0], 0), ([1, 1, 1], 1), ([1, 1, 10], 2), ([10, 1, 1], 0), ([0, 0], 0), ([3, 1, 2], 2)]
)
def test_the_row_in_which_half_of_the_work_is_passed(costs: list[float], expected: int) -> None:
    runs = [run(str(number), cost) for number, cost in enumerate(costs)]
    assert sharing.middle_of_work([*runs, *runs]).row == str(expected)


@pytest.mark.parametrize(
    ("text", "one"),
    [
        ("cpu:auto", "cpu:1x4"),
        ("cuda:*xauto", "cuda:*x1"),
        ("cuda:0,2xauto+cpu:auto", "cuda:0,2x1+cpu:1x4"),
        ("auto", "auto"),
        ("cpu:autox2", "cpu:autox2"),  # refused by what parses it
        ("cuda:auto", "cuda:auto"),
    ],
)
def test_only_whole_words_are_replaced(text: str, one: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "available_cores", lambda: 4)
    assert sharing.as_one(text) == one


@pytest.fixture
def chosen(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A table of two rows on four cores, of which a step takes 1 s alone; two at once gain 1.5, four nothing more."""
    store = Store.open(tmp_path / "runs")
    measured: list[int] = []
    seconds = {1: 1.0, 2: 4 / 3, 4: 8 / 3}

    def together(store: Store, spec: Any, slots: Any) -> list[Measured]:
        measured.append(len(slots))
        assert spec["steps"] == (40 if len(slots) == 1 else sharing.steps_together(1.0))
        return [Measured(seconds[len(slots)]) for _ in slots]

    monkeypatch.setattr(sharing, "available_cores", lambda: 4)
    monkeypatch.setattr(sharing, "probe_together", together)
    monkeypatch.setattr(sharing, "prepare", lambda chosen, runs, progress: None)
    monkeypatch.setattr(sharing, "short_spec", lambda chosen, run, steps: {"task": "t", "config": {}, "steps": steps})
    monkeypatch.setattr(sharing, "step_cost", lambda run: run.cost)
    runs = [run("small", 1.0), run("large", 4.0)]
    task = SimpleNamespace(memory_bytes=lambda config, kind: 1e6)
    return SimpleNamespace(store=store, plan=SimpleNamespace(runs=runs, trainings=runs), task=task, measured=measured)


def resolve(devices: str, chosen: Any, runs: list[Any], say: Callable[[str], None] = print) -> str:
    return sharing.resolve_auto(devices, chosen, runs, lambda *_: None, say)


def test_it_is_measured_once_and_told_to_the_forecast(chosen: Any) -> None:
    assert resolve("cpu:auto", chosen, []) == "cpu:1x4", "nothing to do"
    assert resolve("cpu:auto", chosen, chosen.plan.runs[:1]) == "cpu:2x2"
    assert chosen.measured == [1, 2, 4]
    assert [(p.kind, p.threads, p.cost, p.seconds) for p in kept(chosen.store)] == [("cpu", 2, 4.0, 4 / 3)]
    assert resolve("cpu:auto", chosen, chosen.plan.runs) == "cpu:2x2"
    chosen.plan.runs[1] = run("large", 4.0, seed=2)
    assert resolve("cpu:auto", chosen, chosen.plan.runs) == "cpu:2x2", "another seed is measured alike"
    assert chosen.measured == [1, 2, 4]
    chosen.plan.runs[1] = run("other", 4.0)
    resolve("cpu:auto", chosen, chosen.plan.runs)
    assert chosen.measured == [1, 2, 4] * 2, "other settings are not"


def test_what_cannot_be_measured_is_said_with_what_to_write(chosen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(store: Store, spec: Any, slots: Any) -> list[Measured]:
        raise UserError("A row could not be measured: too slow")

    monkeypatch.setattr(sharing, "probe_together", fails)
    with pytest.raises(UserError, match="too slow Give a number in --devices"):
        resolve("cpu:auto", chosen, chosen.plan.runs)
    assert kept(chosen.store) == []


def test_where_two_do_not_fit_nothing_is_measured_or_kept(chosen: Any) -> None:
    said: list[str] = []
    chosen.task.memory_bytes = lambda config, kind: 1e15
    assert resolve("cpu:auto", chosen, chosen.plan.runs, said.append) == "cpu:1x4"
    assert chosen.measured == []
    assert any("two runs like large do not fit" in line for line in said)


def test_what_trains_beside_it_is_not_measured(chosen: Any) -> None:
    @contextmanager
    def held() -> Iterator[None]:
        raise UserError("process 7 works on this store")
        yield

    object.__setattr__(chosen.store, "coordinator_lock", held)
    with pytest.raises(UserError, match="process 7"):
        resolve("cpu:auto", chosen, chosen.plan.runs)
