"""Tests of paired tests on scores per example, and of examples side by side."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from experiments.errors import UserError
from experiments.tasks.columns import Column
from reports.results.examples import collect_examples
from reports.results.resampling import TRIALS, paired_test, shares_in, shares_of_rows
from reports.results.significance import with_tests
from reports.table.build import build_table


def shares(right, n=200):
    return np.array([1.0] * right + [0.0] * (n - right))


def test_p_is_that_of_the_exact_sign_test_on_discordant_pairs():
    """For scores of 0 and 1, exchanging outputs is McNemar's exact test."""
    base, row = shares(100), shares(100).copy()
    row[:3], row[100:115] = 0.0, 1.0  # 3 lost, 15 won
    found = paired_test(row - base)
    exact = stats.binomtest(15, 18).pvalue
    assert found.difference == pytest.approx(12 / 200)
    assert found.p == pytest.approx(exact, rel=0.35)
    assert found.low < 12 / 200 < found.high and found.low > 0


def test_no_difference_is_no_evidence():
    assert paired_test(shares(50) - shares(50)).p == 1.0


def test_under_no_effect_few_are_called_different():
    chance = np.random.default_rng(1)
    pairs = [(chance.integers(2, size=80) * 1.0, chance.integers(2, size=80) * 1.0) for _ in range(100)]
    assert sum(paired_test(row - base).p <= 0.05 for base, row in pairs) <= 11


ACCURACY = Column("acc", "dev", "accuracy", "accuracy", "higher", 1)


def table_of(bench, **accuracies):
    """Make rows with the given accuracies, in per cent."""
    for number, (key, value) in enumerate(accuracies.items()):
        changes = {"model.d_ff": 8 * number} if number else {}
        bench.row(key, changes, results=[(1.0, 1.0)], scored={"metrics": {"accuracy": value}})
    return build_table(bench.spec([ACCURACY]), bench.store, "none")


def kept_by(**by_row):
    return lambda outcome, set_, metric: by_row.get(outcome.run.row) if metric == "accuracy" else None


def test_the_table_marks_what_differs_between_examples(bench):
    """50, 60 and 50.5 per cent of 200."""
    better, alike = shares(100), shares(101)
    better[100:120] = 1.0
    table = table_of(bench, base=50.0, B=60.0, C=50.5)
    table = with_tests(table, "sentences", lambda *_: None, kept_by(base=shares(100), B=better, C=alike))
    tests = {row.key: row.measures["acc"].test for row in table.rows}
    assert tests["base"] is None and tests["B"].marked and not tests["C"].marked
    assert 0 < tests["B"].low < 10 < tests["B"].high < 20


@pytest.mark.parametrize("row", [shares(120), np.ones(3)], ids=["of something else", "of other examples"])
def test_shares_that_are_not_the_metrics_are_not_tested(bench, row):
    table = table_of(bench, base=50.0, B=10.0)
    kept = kept_by(base=shares(100), B=row)
    assert shares_of_rows(*table.rows, "acc", "dev", "accuracy", kept) is None
    assert all(r.measures["acc"].test is None for r in with_tests(table, "sentences", lambda *_: None, kept).rows)


def test_damaged_examples_are_as_good_as_none(bench, tmp_path):
    outcome = bench.row("base").table().rows[0].outcomes[0]
    bench.store.evaluation_folder = lambda run_id, eval_id: tmp_path
    read = shares_in(bench.store)
    assert read(outcome, "dev", "accuracy") is None
    for text in ("{", '{"accuracy": null}\n', '{"other": 1}\n'):
        (tmp_path / "examples.jsonl").write_text(text)
        found = read(outcome, "dev", "accuracy")
        assert found is None or math.isnan(found[0])
    (tmp_path / "examples.jsonl").write_text('{"accuracy": 1}\n{"accuracy": 0}\n')
    assert read(outcome, "dev", "accuracy").tolist() == [1.0, 0.0]


# --- side by side


@pytest.fixture
def kept(bench, tmp_path):
    """Make two rows with three examples each."""
    bench.row("base").row("B", {"model.d_ff": 8})
    made = {"base": "EEI", "B": "EII"}

    def folder(run_id, eval_id):
        path = tmp_path / run_id
        path.mkdir(exist_ok=True)
        key = run_id.partition("#")[0]
        lines = [{"text": f"t{n}\u2028", "guess": g, "p": 0.1 + 0.1 * (key == "B")} for n, g in enumerate(made[key])]
        (path / "examples.jsonl").write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return path

    bench.store.evaluation_folder = folder
    return bench


def test_shared_fields_once_and_differing_ones_under_each_row(kept):
    found = collect_examples(kept.spec(), kept.store, "dev", 1)
    assert found.heads == ("#", "text", "base: guess", "base: p", "B: guess", "B: p")
    assert [line[2::2] for line in found.lines] == [("E", "E"), ("E", "I"), ("I", "I")]
    only = collect_examples(kept.spec(), kept.store, "dev", 1, differing=True)
    assert [line[0] for line in only.lines] == [2]


def test_no_outputs_is_said(kept):
    with pytest.raises(UserError, match=r"context\.examples"):
        collect_examples(kept.spec(), kept.store, "test", 1)
    with pytest.raises(UserError, match="seed 7"):
        collect_examples(kept.spec(), kept.store, "dev", 7)


def test_with_few_examples_p_is_the_share_of_all_signs():
    """Every assignment of signs to the differences is equally likely; ties of real numbers count."""
    differences = np.array([0.1, 0.2, 0.3, -0.1, 0.4, 0.0])
    signs = np.array([[1 - 2 * (number >> bit & 1) for bit in range(6)] for number in range(64)])
    exact = (abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean()
    found = paired_test(differences)
    assert found.difference == pytest.approx(0.15)
    assert found.p == pytest.approx(exact, abs=4 * (exact * (1 - exact) / TRIALS) ** 0.5)
    assert paired_test(np.full(20, 0.5)).p == pytest.approx(1 / (TRIALS + 1), abs=2 / TRIALS)
    assert (paired_test(np.full(20, 0.5)).low, paired_test(np.full(20, 0.5)).high) == (0.5, 0.5)
    assert paired_test(-differences).p == pytest.approx(found.p, abs=0.02)


@pytest.mark.parametrize(("seeds", "kept"), [((2, 2), (2, 2)), ((2, 3), (2, 2)), ((3, 1), (1, 1))])
def test_shares_are_averaged_over_the_seeds_that_both_have(bench, seeds, kept):
    """In the metric's unit, per cent here; further seeds of one row are left out."""
    shares = np.array([[1.0, 0.0, 1.0, 0.0], [1.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]])
    for (key, changes), number in zip((("base", {}), ("B", {"model.d_ff": 8})), seeds, strict=True):
        bench.row(key, changes, results=[(1.0, 1.0)] * number)
        for run in bench.runs[-number:]:
            value = 100 * float(shares[run.seed - 1].mean())
            bench.store.evaluations[run.run_id, f"{run.run_id}@dev"]["metrics"] = {"accuracy": value}
    base, row = build_table(bench.spec([ACCURACY]), bench.store, "none").rows
    of = lambda outcome, *_: shares[outcome.run.seed - 1]  # noqa: E731
    found = shares_of_rows(base, row, "acc", "dev", "accuracy", of)
    assert found is not None
    for values, number in zip(found, kept, strict=True):
        assert values == pytest.approx(100 * shares[:number].mean(axis=0))
    lost = lambda outcome, *_: None if outcome.run.seed == 1 else shares[0]  # noqa: E731
    assert shares_of_rows(base, row, "acc", "dev", "accuracy", lost) is None


@pytest.mark.parametrize(
    ("base", "row"),
    [
        (np.array([1.0, 0.0, np.nan]), np.array([1.0, 0.0, 1.0])),
        (np.array([1.0, 0.0]), np.array([1.0, 0.0, 1.0, 0.0])),
        (np.zeros(4), np.zeros(4)),
    ],
    ids=["no number", "other examples", "none right"],
)
def test_shares_that_do_not_pair(bench, base, row):
    rows = table_of(bench, base=50.0, B=50.0).rows
    assert shares_of_rows(*rows, "acc", "dev", "accuracy", kept_by(base=base, B=row)) is None


def test_a_row_of_which_none_is_right_pairs_by_the_other_ones_unit(bench):
    rows = table_of(bench, base=50.0, B=0.0).rows
    found = shares_of_rows(*rows, "acc", "dev", "accuracy", kept_by(base=shares(100), B=np.zeros(200)))
    assert found[0].mean() == pytest.approx(50.0) and found[1].tolist() == [0.0] * 200
