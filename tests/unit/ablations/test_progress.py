"""Tests of the order in which rows train, and of the partial table when the output is not a terminal."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from ablations.cli import progress
from ablations.cli.progress import Live, Watched
from ablations.service.enqueue import enqueue
from ablations.service.selected import Selectors, choose
from experiments.jobs.coordinator.reporter import View
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.store.layout import Store

PAPER = """
name = "mine"
title = "Mine"
seeds = 2
[base]
model = {num_layers = 1, d_model = 8, d_ff = 16, num_heads = 2, d_k = 4, d_v = 4}
[[variation]]
key = "small-change"
set = {model.num_heads = 1}
paper = {perplexity = 4.80, bleu = 10.0}
[[variation]]
key = "base"
paper = {perplexity = 5.00, bleu = 25.0}
[[variation]]
key = "large-change"
set = {model.dropout = 0.3}
paper = {perplexity = 6.00, bleu = 25.0}
[[variation]]
key = "no-number"
set = {model.dropout = 0.2}
"""


def test_base_and_large_published_changes_train_first_and_every_row_before_a_second_seed(tmp_path: Any) -> None:
    (tmp_path / "mine.toml").write_text(PAPER)
    store = Store.open(tmp_path / "store")
    chosen = choose(str(tmp_path / "mine.toml"), Selectors(store=store.root))
    plan = chosen.plan
    enqueue(chosen, plan, plan.trainings, "keep")
    with Queue(store.queue_db) as queue:
        jobs = sorted((queue.job(run.run_id).job for run in plan.trainings), key=lambda job: job.turn)
    rows = ["base", "large-change", "small-change", "no-number"]
    assert [(job.spec.seed, job.members[0].row) for job in jobs] == [(seed, row) for seed in (1, 2) for row in rows]


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", clock)
    return clock


def test_where_output_is_no_terminal_the_table_so_far_comes_after_two_minutes_then_after_twice_as_long(
    clock: Clock, tmp_path: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "render", lambda table, _: f"| {table} |")
    made: list[int] = []
    watched = Watched("mine", (), table=lambda: made.append(1) or f"table {len(made)}")  # type: ignore[func-returns-value,return-value]
    printed: dict[float, str] = {}
    with Live(Store.open(tmp_path / "store"), watched) as live:
        for at, finished in [(60, 1), (119, 1), (121, 2), (200, 3), (243, 3), (244, 3), (400, 4), (500, 5)]:
            clock.now = at
            counts = Counter({State.FINISHED: finished, State.RUNNING: 1})
            view: Any = SimpleNamespace(counts=counts, running=[], preparing="", left_s=None, stopping=False)
            assert isinstance(view.counts, Counter) and set(vars(view)) <= set(View.__dataclass_fields__)
            live.update(view)
            if "so far" in (said := capsys.readouterr().err):
                printed[at] = said.strip().splitlines()[-1]
    assert printed == {121: "| table 1 |", 243: "| table 2 |", 500: "| table 3 |"}


@pytest.mark.parametrize(
    ("counts", "left"), [({State.RUNNING: 1}, True), ({State.FINISHED: 2, State.FAILED: 1}, False)]
)
def test_no_time_is_left_once_no_run_waits_or_runs(counts: Any, left: bool, tmp_path: Any) -> None:
    live = Live(Store.open(tmp_path / "store"), Watched("mine", (), expected_s=40.0))
    live._counts_of = lambda _: counts  # type: ignore[method-assign]
    view: Any = SimpleNamespace(counts=counts, running=[], preparing="", left_s=None, stopping=False)
    assert ("left" in live._summary(view)) is left
