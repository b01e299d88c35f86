"""Provide a store in a dict, and plans made directly from the real classes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from ablations.planning.declare_table import table_spec
from ablations.planning.plan import Plan, PlannedRun
from ablations.planning.resolve import PlannedRow
from ablations.study.study import Study
from experiments.config.network_change import with_changes
from experiments.config.run_config import RunConfig
from experiments.run_spec import EvaluationSpec, run_spec
from experiments.run_state import RunState
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.tasks.columns import Column
from experiments.tasks.translation import BLEU, PERPLEXITY
from reports.render.cells import Grid
from reports.render.layout import layout_of
from reports.render.printed import arranged
from reports.results.table import Table
from reports.spec.table_spec import TableSpec
from reports.table.build import build_table
from reports.table.cost import shown
from tests.stores import made_once
from tests.unit.reports import real

COLUMNS = (
    replace(PERPLEXITY, about=""),
    BLEU,
    Column("bleu", "*", "bleu", "BLEU", "higher", 1, counts=BLEU.counts),
)
SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.5.1"


def lay_out(table: Table) -> Grid:
    """Return every column of a table."""
    return arranged(table, layout_of(table, shown(table)))


@dataclass
class FakeStore(Store):
    root: Path = Path("/no/such/store")
    results: dict[str, dict[str, Any]] = field(default_factory=dict)
    evaluations: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def run_folder(self, run_id: str) -> Path:
        return self.runs / run_id

    def evaluation_folder(self, run_id: str, eval_id: str) -> Path:
        return self.run_folder(run_id) / "evaluations" / eval_id

    def result(self, run_id: str) -> TrainingResult | None:
        found = self.results.get(run_id)
        return None if found is None else TrainingResult.read(found)

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult | None:
        found = self.evaluations.get((run_id, eval_id))
        return None if found is None else EvaluationResult.read(found)


@dataclass
class Bench:
    """Collects rows and their results; `table` builds the table."""

    store: FakeStore = field(default_factory=FakeStore)
    rows: list[PlannedRow] = field(default_factory=list)
    runs: list[PlannedRun] = field(default_factory=list)
    study: dict[str, Any] = field(default_factory=lambda: {"name": "small", "title": "A small table"})
    notes: tuple[str, ...] = ()
    paper_keys: tuple[str, ...] = ("perplexity", "bleu", "params")

    def row(
        self,
        key: str,
        changes: dict[str, Any] | None = None,
        *,
        results: list[tuple[float, float] | None] | None = None,
        states: list[str] | None = None,
        sets: tuple[str, ...] = ("dev",),
        num_params: int = 65_000_000,
        record: dict[str, Any] | None = None,
        scored: dict[str, Any] | None = None,
        inputs: dict[str, str] | None = None,
        corpus: str = "0c0de0c0de0c0de0",
        selected: bool = True,
        **variation: Any,
    ) -> "Bench":
        """`results`: (perplexity, bleu) per seed, or None; `record` and `scored` replace facts."""
        changes = changes or {}
        results = results if results is not None else [(5.0, 25.0)]
        states = states or ["missing" if result is None else "finished" for result in results]
        self.study.setdefault("variation", []).append({"key": key, "set": changes, **variation})
        if not selected:
            return self
        row = Study.model_validate({**self.study, "variation": [self.study["variation"][-1]]}).variations[0]
        nested: dict[str, dict[str, Any]] = {}
        for name, value in changes.items():
            nested.setdefault(name.partition(".")[0], {})[name.partition(".")[2]] = value
        seeds = tuple(range(1, len(results) + 1))
        config = with_changes(RunConfig).model_validate(nested)
        self.rows.append(PlannedRow(row, config, seeds, changes, ()))
        for seed, result, state in zip(seeds, results, states, strict=True):
            run_id = f"{key}#{seed}"
            evaluations = tuple(
                EvaluationSpec(name, {"beam_size": 4}, inputs or {"text": name}, eval_id=f"{run_id}@{name}")
                for name in sets
            )
            of_seed = config.model_copy(update={"seed": seed})
            spec = run_spec(of_seed, run_id, {"corpus": corpus}, num_params=num_params, cost=1.0)
            self.runs.append(PlannedRun(spec, self.rows[-1], RunState(state), evaluations))
            if result is not None:
                self._finish(self.runs[-1], result, record or {}, scored or {})
        return self

    def _finish(self, run: PlannedRun, result: tuple[float, float], record: Any, scored: Any) -> None:
        self.store.results[run.run_id] = {
            "run_id": run.run_id, "step": 400, "wall_s": 12.5, "code_digest": "c0de", "num_params": run.spec.num_params,
            "revision": {"commit": "0123456789abcdef", "dirty": False}, "versions": {"torch": "2.13.0"},
            "device": "a processor (1 thread)", "device_kind": "cpu", "threads": 1, "precision": "fp32", "data": {},
        } | record  # fmt: skip
        for planned in run.evaluations:
            self.store.evaluations[run.run_id, planned.eval_id] = {
                "metrics": {"perplexity": result[0], "bleu": result[1]}, "signature": {"bleu": SIGNATURE},
                "sentences": 1000, "code_digest": "e7a1", "device_kind": "cpu", "precision": "fp32",
            } | scored  # fmt: skip

    def plan(self) -> Plan:
        study = Study.model_validate(self.study)
        return Plan(study, "exact", tuple(self.rows), tuple(self.runs), self.notes, self.paper_keys)

    def table(self, tests: str = "auto", *, provisional: bool = False) -> Table:
        return build_table(self.spec(), self.store, tests, provisional=provisional)

    def spec(self, columns: Sequence[Column] = COLUMNS) -> TableSpec:
        return table_spec(self.plan(), columns)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def new_bench() -> Callable[[], Bench]:
    return Bench


@pytest.fixture(scope="session")
def small() -> dict[str, real.Made]:
    """Return a finished table of each kind of task, written by children. Tests change only copies (`copied`)."""
    return real.made_all(made_once("each kind of task", real.make_all))
