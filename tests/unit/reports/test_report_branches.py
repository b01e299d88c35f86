"""Rows that share steps with another row have a mark, a note and a test that pairs their seeds."""

import math

import numpy as np
import pytest
from scipy import stats

from experiments.identity import ParentRun, with_parent_run
from reports.render.formats import render
from reports.results import dunnett
from reports.table.build import record
from tests.planned_runs import with_spec

CHANCE = np.random.default_rng(3)
BASE = [(math.exp(1.6 + x), 25 + 10 * x) for x in CHANCE.normal(0, 0.05, 6)]
OTHER = [(math.exp(1.9 + x), 22 + 10 * x) for x in CHANCE.normal(0, 0.05, 6)]
PARENT = ParentRun("0123456789abcdef", 300)


def shifted(by, noise):
    """Return base's values seed by seed, changed by about `by`, so that most of the variation is shared."""
    return [(p * math.exp(-by / 10 + e), b + by + 10 * e) for (p, b), e in zip(BASE, noise, strict=True)]


NOISE = CHANCE.normal(0, 0.002, (2, 6))


def with_branches(bench, *rows):
    """Make base, an independent row, and rows that branch from base."""
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=OTHER)
    for number, results in enumerate(rows):
        bench.row(f"T{number}", {"training.label_smoothing": 0.2 + number / 10}, results=results)
        for place in range(len(bench.runs) - len(results), len(bench.runs)):
            run = bench.runs[place]
            bench.runs[place] = with_spec(run, inputs=with_parent_run(run.spec.inputs, PARENT))
            bench.store.results[run.run_id]["inputs"] = dict(bench.runs[place].spec.inputs)
    return bench


def found_in(table, key):
    return {row.key: row.measures[key].test for row in table.rows}


def test_seeds_of_a_branch_are_paired(bench):
    rows = [shifted(0.3, NOISE[0]), shifted(0.0, NOISE[1])]
    table = with_branches(bench, *rows).table()
    for key, of in (("bleu", lambda value: value[1]), ("ppl", lambda value: math.log(value[0]))):
        found = found_in(table, key)
        for name, values in zip(("T0", "T1"), rows, strict=True):
            ours, theirs = [of(v) for v in values], [of(v) for v in BASE]
            paired = stats.ttest_rel(ours, theirs)
            assert found[name].p == pytest.approx(min(1, 2 * paired.pvalue), abs=1e-6), "of two branches"
            assert found[name].paired == pytest.approx(tuple(paired.confidence_interval(0.95)))
            assert (found[name].low, found[name].high) == pytest.approx(tuple(paired.confidence_interval(0.975)))
        assert found["T0"].marked and not found["T1"].marked
    independent = stats.ttest_ind([b for _, b in rows[0]], [b for _, b in BASE]).pvalue
    assert independent > 0.5, "as independent rows they could not be told apart"


def test_other_rows_are_tested_as_if_there_were_no_branch(bench, new_bench):
    alone = new_bench().row("base", results=BASE).row("B", {"model.d_k": 16}, results=OTHER).table()
    table = with_branches(bench, shifted(0.3, NOISE[0])).table()
    for key in ("ppl", "bleu"):
        assert found_in(table, key)["B"] == found_in(alone, key)["B"]
    assert any(row.measures["bleu"].best for row in alone.rows)
    assert not any(measure.best for row in table.rows for measure in row.measures.values()), "nothing is bold"


def test_the_table_marks_what_is_shared_and_says_how_it_is_tested(bench):
    table = with_branches(bench, shifted(0.3, NOISE[0])).table()
    text = render(table, "markdown")
    assert "‡: T0 branches from 0123456789abcdef after step 300." in text and "at step 301" in text
    lines = {line.split("|")[1].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert "‡" in lines["T0"] and not any("‡" in line for row, line in lines.items() if row != "T0")
    assert render(table, "latex").partition(r"\end{table}")[0].count(r"\ddag{}") == 3, (
        "two values, and the sentence under them"
    )
    assert "<sup>‡</sup>" in render(table, "html")
    assert (
        "against base (the larger p of Student's and Welch's t tests)" in text
        and "t test of the differences of the same seed" in text
    )
    [bleu] = [note for note, *_ in table.test_notes if note.startswith("BLEU (dev): 1 row compared")]
    assert "BLEU (dev): differences of branches detected" in bleu


def test_where_all_rows_are_branches_dunnett_is_not_named(bench):
    bench.row("base", results=BASE)
    bench.row("T", {"training.label_smoothing": 0.2}, results=shifted(0.3, NOISE[0]))
    bench.runs[6:] = [with_spec(run, inputs=with_parent_run(run.spec.inputs, PARENT)) for run in bench.runs[6:]]
    for run in bench.runs[6:]:
        bench.store.results[run.run_id]["inputs"] = dict(run.spec.inputs)
    table = bench.table()
    assert table.test == "seeds" and found_in(table, "bleu")["T"].marked
    assert "Welch" not in render(table, "markdown")


def test_a_branch_that_changes_nothing_is_not_tested(bench):
    table = with_branches(bench, BASE).table()
    assert found_in(table, "bleu")["T0"] is None
    assert any("T0 not tested" in note for note, *_ in table.test_notes)


def test_a_branchs_costs_include_its_parent_runs(bench):
    """In proportion to the shared steps: of operations, operations by time and hours, and in claims on them."""
    whole = {"flops": 8e9, "train_s": 3600.0, "step": 400, "devices": 2}
    paper = {"bleu": 25.0, "flops": 1e19, "hours": 12.0}
    bench.study |= {"sustained_flops": {"a processor": 1e6}}
    bench.paper_keys = ("bleu", "flops", "hours")
    bench.row("base", results=BASE[:2], record=whole, paper=paper)
    own = {"flops": 3e9, "train_s": 1800.0, "step": 500}
    bench.row("T", {"training.label_smoothing": 0.2}, results=BASE[:2], record=own, paper=paper)
    bench.study["claim"] = [{"check": f"T is worse than base in {cost}"} for cost in ("flops", "hours")]
    for seed in (1, 2):
        run, parent = bench.runs[seed + 1], f"{seed:016x}"
        bench.runs[seed - 1] = with_spec(bench.runs[seed - 1], run_id=parent)
        bench.store.results[parent] = bench.store.results.pop(f"base#{seed}")
        inputs = with_parent_run(run.spec.inputs, ParentRun(parent, 300))
        bench.runs[seed + 1] = with_spec(run, inputs=inputs)
        bench.store.results[run.run_id]["inputs"] = dict(inputs)
    table = bench.table()
    base, branch = (record(row, table) for row in table.rows)
    assert (base["flops_counted"], base["train_hours"], base["flops_by_time"]) == (8e9, 1.0, 2 * 3600e6)
    assert branch["flops_counted"] == 3e9 + 8e9 * 300 / 400
    assert branch["train_hours"] == 0.5 + 300 / 400
    assert branch["flops_by_time"] == pytest.approx(1800e6 + 2 * 3600e6 * 300 / 400)
    assert [claim.here.state for claim in table.claims] == ["holds", "holds"]
    for seed in (1, 2):
        del bench.store.results[f"{seed:016x}"]
    table = bench.table()
    assert record(table.rows[1], table)["flops_counted"] is record(table.rows[1], table)["train_hours"] is None
    assert any(note.startswith("Training costs are blank for T: ") for note, *_ in table.footnotes)


@pytest.mark.parametrize("rows", [1, 3])
def test_the_error_rate_of_the_paired_test(rows):
    """5 % of tables in which no branch differs have a difference beyond the limit; shared steps do not matter."""
    chance, wrong, tables, n = np.random.default_rng(5), 0, 4000, 4
    for _ in range(tables):
        base = chance.normal(0, 1, n)
        prefix = 0.9 * base
        found = []
        for _ in range(rows):
            difference = prefix + chance.normal(0, 0.4, n) - base
            family = dunnett.Family(n, (n,), difference.var(ddof=1) / 2, n - 1, dunnett.ALPHA / rows)
            found.append(abs(difference.mean()) / family.error(n))
        wrong += max(found) > LIMITS[rows]
    assert wrong / tables == pytest.approx(0.05, abs=0.012)


LIMITS = {rows: dunnett.Family(4, (4,), 1.0, 3, dunnett.ALPHA / rows).critical() for rows in (1, 3)}


def test_its_limit_is_students():
    for rows, limit in LIMITS.items():
        assert limit == pytest.approx(stats.t.ppf(1 - 0.025 / rows, 3), rel=1e-6)
