"""A study's rule: each row's mean over seeds against a target."""

import json

import numpy as np
import pytest
from scipy import stats

from reports.render.formats import render
from reports.render.setup import checklist
from reports.results.rule import p_better
from tests.unit.reports.real import said

GOOD = [(4.2, 27.0), (4.3, 27.1), (4.25, 27.2)]
NEAR = [(4.6, 25.4), (4.4, 25.9), (4.3, 25.5)]


@pytest.fixture
def ruled(bench):
    bench.study |= {"rule": "speedrun", "target": {"value": 4.6, "source": "three earlier trainings of base"}}
    return bench


@pytest.mark.parametrize("n", [2, 3, 10])
@pytest.mark.parametrize("lower", [True, False])
def test_p_is_that_of_students_t_of_one_sample(n, lower):
    rng = np.random.default_rng(n)
    for shift in (-3, -0.5, 0, 2):
        values = list(rng.normal(3.28 + 0.002 * shift, 0.002, n))
        expected = stats.ttest_1samp(values, 3.28, alternative="less" if lower else "greater").pvalue
        assert p_better(values, 3.28, lower=lower) == pytest.approx(expected, rel=1e-9)


def test_a_rule_is_tested_per_row_and_printed_in_every_format(ruled):
    table = ruled.row("base", results=NEAR).row("B", {"model.d_k": 16}, results=GOOD).table()
    for row in table.rows:  # a perplexity is compared by its logarithm
        logarithms = [np.log(value) for value in row.measures["ppl"].values]
        expected = stats.ttest_1samp(logarithms, np.log(4.6), alternative="less").pvalue
        assert table.rule[row.key].p == pytest.approx(expected, rel=1e-9)
        assert table.rule[row.key].holds == (expected < 0.01) == (row.key == "B")
    notes = [
        "Rule speedrun: it holds for a row whose mean PPL (dev) over seeds is below 4.6 at p < 0.01 (Student's t",
        "Target: three earlier trainings of base.",
        f"speedrun, base: does not hold, mean 4.433 of 3 seeds, p = {table.rule['base'].p:.4f}.",
        f"speedrun, B: holds, mean 4.250 of 3 seeds, p = {table.rule['B'].p:.4f}.",
    ]
    assert all(said(table, note) for note in notes)
    assert "speedrun, B: holds, mean" in dict(checklist(table))["Statistical test"]
    for format_ in ("markdown", "latex", "html"):
        assert "speedrun, B: holds, mean 4.250 of 3 seeds" in render(table, format_)
    records = {record["row"]: record for record in json.loads(render(table, "json"))}
    assert records["B"]["rule_p"] == table.rule["B"].p
    assert (records["base"]["rule_holds"], records["B"]["rule_holds"]) == (False, True)
    assert "rule_p,rule_holds" in render(table, "csv").splitlines()[0]


def test_without_a_rule_nothing_is_added(bench):
    table = bench.row("base", results=NEAR).table()
    assert table.rule is None
    assert "rule" not in render(table, "json") and "speedrun" not in render(table, "markdown")


@pytest.mark.parametrize(
    ("results", "why"),
    [
        ([(4.2, 27.0)], "one seed shows no spread between seeds"),
        ([(4.2, 27.0), None, (4.1, 27.0)], "2 of 3 seeds done"),
        ([(4.2, 27.0)] * 3, "its values do not vary between seeds"),
    ],
)
def test_what_cannot_be_tested_is_said(ruled, results, why):
    table = ruled.row("base", results=results).table()
    assert said(table, f"speedrun, base: not tested, {why}.")
    assert table.rule["base"].p is table.rule["base"].holds is None


def test_a_metric_that_should_be_high_is_tested_upwards(ruled):
    ruled.study["target"] = {"value": 26.0, "metric": "bleu", "alpha": 0.05}
    table = ruled.row("base", results=NEAR).row("B", {"model.d_k": 16}, results=GOOD).table()
    assert said(table, "whose mean BLEU (dev) over seeds is above 26 at p < 0.05")
    expected = stats.ttest_1samp([bleu for _, bleu in GOOD], 26.0, alternative="greater").pvalue
    assert table.rule["B"].p == pytest.approx(expected, rel=1e-9)
    assert (table.rule["base"].holds, table.rule["B"].holds) == (False, True)


def test_a_profile_has_its_own_target_or_says_that_it_has_none(ruled):
    ruled.study["profile"] = {"exact": {"target": 3.0}, "other": {}}
    assert said(ruled.row("base", results=GOOD).table(), "below 3 at p < 0.01")
    del ruled.study["target"]
    ruled.study["profile"] = {"exact": {}, "other": {"target": 3.0}}
    table = ruled.table()
    assert said(table, "Rule speedrun: no row is tested, the profile exact has no target.")
    assert table.rule is None


def test_rows_that_are_not_scored_on_the_targets_set(ruled):
    ruled.study["target"] = {"value": 26.0, "metric": "bleu", "set": "test"}
    assert said(ruled.row("base", results=GOOD).table(), "no row is tested, none is scored on test")
    table = ruled.row("B", {"model.d_k": 16}, results=GOOD, sets=("dev", "test")).table()
    assert said(table, "speedrun, base: not tested, not scored on this set.")
    assert said(table, "speedrun, B: holds, mean 27.10 of 3 seeds")
