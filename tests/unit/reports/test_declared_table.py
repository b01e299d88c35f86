"""Reports can print a table from a TableSpec alone, without a study or a plan."""

import pytest

from experiments.config.run_config import RunConfig
from experiments.run_spec import EvaluationSpec, run_spec
from experiments.run_state import RunState
from reports.render.formats import render
from reports.spec.sentences import Claim
from reports.spec.table_spec import Note, RowSpec, TableRun, TableSpec
from reports.table.build import build_table
from tests.unit.reports.conftest import COLUMNS, FakeStore


def row(store: FakeStore, key: str, bleu: dict[int, float], *, selected: bool = True, **settings: object) -> RowSpec:
    """Return a row with one run per seed, whose dev BLEU is in the store."""
    runs = []
    for seed, score in bleu.items():
        config, run_id = RunConfig.model_validate({"model": settings, "seed": seed}), f"{key}#{seed}"
        evaluation = EvaluationSpec("dev", {"beam_size": 4}, {"text": "dev"}, eval_id=f"{run_id}@dev")
        store.results[run_id] = {"run_id": run_id, "data": {}}
        store.evaluations[run_id, evaluation.eval_id] = {"metrics": {"bleu": score, "perplexity": 5.0}}
        spec = run_spec(config, run_id, {"corpus": "c0de"})
        runs.append(TableRun(key, spec, config, RunState("finished"), (evaluation,)))
    declared = {f"model.{name}": value for name, value in settings.items()}
    return RowSpec(key, declared=declared, overrides=declared, runs=tuple(runs) if selected else ())


def declared(base_is_selected: bool) -> tuple[TableSpec, FakeStore]:
    store = FakeStore()
    rows = (
        row(store, "base", {1: 25.0, 2: 26.0}, selected=base_is_selected),
        row(store, "h4", {1: 24.0, 2: 24.5}, num_heads=4),
    )
    claims = (Claim(check="h4 is worse than base in bleu by at least 0.5"),)
    notes = (Note("A note of the study.", "study"), Note("A value was replaced.", "gap"))
    spec = TableSpec(
        "mine", "My table", "translation", "exact", rows, metrics=COLUMNS, base="base", claims=claims, notes=notes
    )
    return spec, store


def test_a_table_that_no_study_declares_is_built_and_printed() -> None:
    spec, store = declared(base_is_selected=True)
    table = build_table(spec, store, "none")
    base, h4 = (row.measures["bleu"] for row in table.rows)
    assert (base.mean, h4.mean, h4.change) == (25.5, 24.25, pytest.approx(-1.25))
    assert table.rows[1].settings == {"model.num_heads": 4} and table.claims[0].here.words.startswith("24.2 (h4)")
    assert [note for note in table.footnotes if note.kind in ("study", "gap")][-2:] == list(spec.notes)
    text = render(table, "latex")
    assert r"\caption{My table}" in text and "24.2" in text and "25.5" in text


def test_without_the_selected_base_no_change_is_known() -> None:
    """The base row is identified by its key, not by its position."""
    spec, store = declared(base_is_selected=False)
    table = build_table(spec, store, "none")
    assert table.base is None and [row.key for row in table.rows] == ["h4"]
    assert table.rows[0].measures["bleu"].change is None
    assert table.claims[0].here.state == "cannot be checked"


def test_the_plan_s_table_has_the_study_s_rows_and_the_runs_of_the_selected_ones(bench) -> None:
    bench.study |= {"notes": ["Of the study."], "profile": {"exact": {"notes": ["Of the profile."]}}}
    bench.notes = ("Replaced.", "Of the profile.")
    bench.row("base", results=[(5.0, 25.0), (5.1, 25.2)], paper={"bleu": 25.8}, note="Of the row.")
    bench.row("left-out", {"model.num_heads": 4}, selected=False)
    spec = bench.spec()
    assert [(row.key, len(row.runs)) for row in spec.rows] == [("base", 2), ("left-out", 0)]
    assert [run.run_id for run in spec.runs] == ["base#1", "base#2"] and spec.rows[0].paper == {"bleu": 25.8}
    assert spec.rows[0].runs[0].spec is bench.runs[0].spec  # the plan's own record
    assert [(note.text, note.kind) for note in spec.notes] == [
        ("Of the study.", "study"), ("base: Of the row.", "study"), ("Replaced.", "gap"), ("Of the profile.", "study"),
    ]  # fmt: skip
    assert spec.paper_sizes and spec.base == "base"
