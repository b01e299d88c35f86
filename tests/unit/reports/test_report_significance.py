"""Tests of marked changes, the significance test, and its notes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.errors import UserError
from experiments.identity import with_members
from reports.audit.compare import compare
from reports.render.formats import render
from reports.results import dunnett, power
from reports.results.resampling import by_counts, by_shares
from reports.results.significance import BOTH, DUNNETT, ENOUGH_SEEDS, OF_ONE_ROW, paired, with_tests
from reports.spec.table_spec import Note
from reports.table.build import record
from reports.table.notes import kendall
from tests.planned_runs import with_spec

BASE = [(5.0, 25.0), (5.1, 25.2), (4.9, 24.9)]
WORSE = [(5.6, 22.1), (5.5, 22.0), (5.7, 22.3)]
ALIKE = [(5.05, 25.1), (4.95, 24.8), (5.1, 25.3)]


def found_in(table, key):
    return {row.key: row.measures[key].test for row in table.rows}


def with_counts(table, counts, mode):
    return with_tests(table, mode, lambda outcome, column: counts.get(outcome.run.run_id))


def counts_of(quality, size=200, seed=1):
    """Return counts of ten-word sentences, of which a share `quality` (with its n-grams) is correct."""
    rng = np.random.default_rng(seed)
    correct = np.stack([rng.binomial(10 - order, quality / (order + 1), size) for order in range(4)], axis=1)
    return np.concatenate([np.full((size, 2), 10), correct, np.tile([10, 9, 8, 7], (size, 1))], axis=1)


def test_seeds_mark_what_differs_and_only_that(bench):
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE)
    table = bench.row("C", {"model.d_k": 32}, results=ALIKE).table()
    assert table.test == "seeds"
    for key in ("ppl", "bleu"):
        found = found_in(table, key)
        assert (found["base"], found["B"].marked, found["C"].marked) == (None, True, False)
        for row in table.rows[1:]:
            test, change = row.measures[key].test, row.measures[key].change
            assert test.low < change < test.high
            assert test.marked == (not test.low < 0 < test.high)
    text = render(table, "markdown")
    assert r"−3.0\* " in text or "−2.9\\*" in text
    notes = " ".join(note.text for note in table.footnotes)
    assert f"p < .05 against base ({BOTH})." in text and "BLEU (dev): 2 rows compared, sd 0.15 to 0.25" in notes
    assert r"\rlap{$^{{*}}$} &" in render(table, "latex")


def test_values_of_another_order_are_not_said_to_be_alike(bench):
    """Base has a real spread that is negligible next to 1e24."""
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=[(5.0, 1e24)] * 3)
    assert any("BLEU (dev): no significance test, because its spread" in n for n, *_ in bench.table().test_notes)


def test_a_number_without_a_logarithm_is_said_to_have_no_change(bench):
    table = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=[(-1.0, 22.0)] * 3).table()
    assert table.rows[1].measures["ppl"].change is None
    why = "PPL (dev): values of zero or less have no logarithm, so their changes are missing."
    assert Note(why, "gap") in table.footnotes


def test_numbers_too_large_to_be_added_are_printed(bench):
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=[(1e308, 1.7e308)] * 3)
    table = bench.table()
    assert table.rows[1].measures["bleu"].mean == 1.7e308
    assert "1.7e+308" in render(table, "markdown")


@pytest.mark.parametrize(
    ("there", "over"),
    [
        ((5.4, 5.5, 5.6), "seeds"),
        ((-1.1, -1.0, -0.9), "a number has no logarithm"),
        ((5e299, 1e300, 1.5e300), "seeds"),
    ],
)
def test_a_comparison_is_welchs_test_and_prints_no_difference_that_does_not_exist(bench, there, over):
    table = bench.row("base", results=BASE).table()
    [row] = table.rows
    moved = replace(row, measures={**row.measures, "ppl": replace(row.measures["ppl"], values=there)})
    (cell, _) = compare(table, replace(table, rows=(moved,)), (lambda *_: None,) * 2)
    assert cell.over == over
    if over != "seeds":
        assert cell.difference is cell.low is cell.high is None
        return
    ours, theirs = ([math.log(value) for value in values] for values in ([ppl for ppl, _ in BASE], there))
    expected = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95)
    assert cell.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert (cell.low, cell.high) == pytest.approx(tuple(expected))


def test_an_ensemble_is_compared_but_not_tested_between_seeds(bench):
    """It is one entry without a seed: it neither shows a spread nor keeps the other rows from their test."""
    without = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE).table()
    bench.row("E", results=[(4.5, 27.0)])
    bench.runs[-1] = with_spec(bench.runs[-1], inputs=with_members(bench.runs[-1].spec.inputs, ["base#1", "base#2"]))
    table = bench.table()
    assert table.test == "seeds"
    for key in ("ppl", "bleu"):
        found = found_in(table, key)
        assert found["E"] is None and found["B"] == found_in(without, key)["B"]
        assert table.rows[2].measures[key].change is not None


def test_perplexities_are_tested_as_they_are_compared(bench):
    table = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE).table()
    logs = [[math.log(ppl) for ppl, _ in values] for values in (WORSE, BASE)]
    oracle = stats.ttest_ind(*logs, equal_var=False).pvalue
    assert found_in(table, "ppl")["B"].p == pytest.approx(oracle, abs=1e-8)
    differences = np.subtract(*logs)
    expected = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    assert found_in(table, "ppl")["B"].paired == pytest.approx(expected)


def test_auto_tests_nothing_with_fewer_seeds_and_says_so(bench):
    table = bench.row("base").row("B", {"model.d_k": 16}, results=[(9.0, 2.0)]).table()
    assert table.test == ""
    assert not any(found_in(table, "bleu").values())
    assert f"One seed: no significance test (needs {ENOUGH_SEEDS} or more)." in render(table, "markdown")
    assert "bleu_p" not in record(table.rows[1], table)


def test_a_row_with_fewer_seeds_is_named_and_the_others_are_tested_as_without_it(bench):
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE).row(
        "C", {"model.d_k": 32}, results=ALIKE
    )
    without = bench.table()
    table = bench.row("two", {"model.d_k": 64}, results=WORSE[:2]).table()
    for key in ("ppl", "bleu"):
        found = found_in(table, key)
        assert found.pop("two") is None
        assert found == found_in(without, key) and found["B"].marked
    texts = [note for note, *_ in table.test_notes]
    assert texts.count("No significance test for rows with fewer than 3 seeds: two.") == 1
    assert [row.key for row in table.rows if row.measures["bleu"].best] == ["C"]


def test_no_row_is_tested_where_base_has_too_few_seeds_and_the_note_says_so(bench):
    table = bench.row("base", results=BASE[:2]).row("B", {"model.d_k": 16}, results=WORSE).table()
    assert not any(found_in(table, "bleu").values())
    assert [note for note, *_ in table.test_notes] == ["No significance test: base has 2 seeds (needs 3 or more)."]


def test_the_star_is_explained_only_where_there_is_one(bench):
    table = bench.row("base", results=BASE).row("C", {"model.d_k": 32}, results=ALIKE).table()
    texts = [note for note, *_ in table.test_notes]
    assert texts[0] == f"No change has p < .05 against base ({OF_ONE_ROW})."
    assert not any(text.startswith("*") for text in texts)


def test_incomplete_and_incomparable_rows_are_not_tested(bench):
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=[*WORSE[:2], None])
    bench.row("V", {"data.vocab_size": 1000}, results=WORSE).row("C", {"model.d_k": 32}, results=ALIKE)
    table = bench.table()
    assert [key for key, test in found_in(table, "ppl").items() if test] == ["C"]
    assert [key for key, test in found_in(table, "bleu").items() if test] == ["V", "C"]


def test_values_that_do_not_vary_are_not_tested(bench):
    table = bench.row("base", results=[(5.0, 25.0)] * 3).row("B", {"model.d_k": 16}, results=[(6.0, 24.0)] * 3).table()
    assert not any(found_in(table, "bleu").values())
    assert any("do not vary between seeds" in note for note, *_ in table.footnotes)


def test_sentences_mark_and_disclaim(bench):
    bench.row("base").row("B", {"model.d_k": 16}).row("C", {"model.d_k": 32}).row("D", {"model.d_k": 128})
    counts = {"base#1": counts_of(0.8), "B#1": counts_of(0.6, seed=2), "C#1": counts_of(0.8)}
    table = with_counts(bench.table(), counts, "sentences")
    found = found_in(table, "bleu")
    assert (found["B"].marked, found["C"].marked, found["C"].p, found["D"]) == (True, False, 1.0, None)
    assert found["B"].high < 0
    assert not any(found_in(table, "ppl").values())  # perplexity keeps no counts
    assert "Other trainings may differ by more" in table.test_notes[0].text
    assert any("no test for D, because no counts per sentence" in note for note, *_ in table.test_notes)


def test_several_seeds_are_pooled_by_sentence(bench):
    """A sentence is swapped with all its translations, so more seeds do not give more sentences."""
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=ALIKE)
    one, other = counts_of(0.8), counts_of(0.75, seed=2)
    repeated = {f"base#{n}": one for n in (1, 2, 3)} | {f"B#{n}": other for n in (1, 2, 3)}
    single = with_counts(bench.table(), repeated, "sentences")
    bench.rows.clear(), bench.runs.clear(), bench.study["variation"].clear()
    bench.row("base").row("B", {"model.d_k": 16})
    assert found_in(single, "bleu")["B"].p == found_in(with_counts(bench.table(), repeated, "sentences"), "bleu")["B"].p


def test_records_carry_the_tests(bench):
    table = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE).table()
    base, row = (record(r, table) for r in table.rows)
    assert base["bleu_p"] is None and row["bleu_p"] < 0.05
    assert row["bleu_low"] < row["bleu_change"] < row["bleu_high"]


def test_none_and_unknown_modes(bench):
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE)
    assert bench.table("none").test == ""
    with pytest.raises(UserError, match="auto, seeds, paired, sentences, none"):
        bench.table("t-test")


def test_the_order_of_changes_beside_the_papers(bench):
    paper = [25.8, 24.9, 25.5, 25.1, 23.7]
    for number, value in enumerate(paper):
        changes = {"model.d_ff": 64 + number} if number else {}
        bench.row(f"r{number}", changes, results=[(5.0, 20 - number)], paper={"bleu": value})
    ours, theirs = [-1, -2, -3, -4], [p - paper[0] for p in paper[1:]]
    tau = stats.kendalltau(ours, theirs).statistic
    assert kendall(list(zip(ours, theirs, strict=True))) == pytest.approx(tau)
    assert any(f"BLEU (dev) {tau:.2f} over 4 rows" in note for note, *_ in bench.table().footnotes)
    ties = [(1, 1), (1, 2), (2, 2), (3, 2), (0, 5)]
    assert kendall(ties) == pytest.approx(stats.kendalltau(*zip(*ties, strict=True)).statistic)
    assert kendall([(1, 1), (1, 2)]) is None


def test_a_star_is_the_larger_p_of_dunnetts_test_and_t3_below_five_percent_and_nothing_else(bench):
    """Row by row: B differs by both tests, C by Dunnett's alone since base is noisy, D has p just below 5 %."""
    base = [25.0, 25.3, 24.7]
    rows = {"B": [20.0, 20.1, 19.9], "C": [23.8, 24.4, 23.2], "D": [23.7, 23.6, 23.8]}
    for d_k, (key, values) in enumerate({"base": base, **rows}.items()):
        results = [(5.0 + step / 10, bleu) for step, bleu in enumerate(values)]
        bench.row(key, {"model.d_k": 8 * d_k} if d_k else {}, results=results)
    table = bench.table()
    pooled = dunnett.family(base, list(rows.values()))
    for key, test in list(found_in(table, "bleu").items())[1:]:
        difference = np.mean(rows[key]) - np.mean(base)
        families = [pooled, dunnett.t3(base, rows[key], 3)]
        assert test.p == max(family.p(difference, 3) for family in families) and test.by == BOTH
        half = max(family.critical() * family.error(3) for family in families)
        assert (test.low, test.high) == pytest.approx((difference - half, difference + half))
        assert test.marked == (test.p < 0.05) == (not test.low < 0 < test.high)
    assert [test and test.marked for test in found_in(table, "bleu").values()] == [None, True, False, True]
    assert pooled.p(np.mean(rows["C"]) - 25.0, 3) < 0.05
    least = power.detectable_by_both(pooled)
    assert abs(np.mean(rows["D"]) - 25.0) < least, "the difference is smaller than these seeds show with 80 % power"
    [note] = [note for note, *_ in table.test_notes if note.startswith("BLEU (dev): ")]
    assert f"differences of {least:.2f} with 80 % power" in note
    assert f"sd 0.10 to 0.60, pooled {pooled.variance**0.5:.2f}" in note


def test_rows_without_any_spread_are_not_tested_beside_others(bench):
    """With a deterministic trainer, there is no star without a test, and no crash."""
    bench.row("base", results=[(5.0, 25.0)] * 3).row("B", {"model.d_k": 16}, results=[(6.0, 24.0)] * 3)
    table = bench.row("C", {"model.d_k": 32}, results=WORSE).table()
    found = found_in(table, "bleu")
    assert found["B"] is None and found["C"].marked
    assert any(note.endswith("because their values do not vary: B.") for note, *_ in table.test_notes)
    assert [row.measures["bleu"].best for row in table.rows] == [True, False, False]
    assert record(table.rows[0], table)["bleu_best"] is True


def test_rows_of_other_numbers_of_seeds_are_one_family(bench):
    """The error of each is by its own number; a single seed has no variance, and is tested by Dunnett's test alone."""
    base, b, c, d = [25.0, 25.4, 24.7, 25.1, 25.2], [23.0, 23.3, 22.8], [25.5, 25.6, 25.1, 25.4, 25.9], [20.0]
    for number, (key, values) in enumerate((("base", base), ("B", b), ("C", c), ("D", d))):
        changes = {"model.d_k": 16 * number} if number else {}
        bench.row(key, changes, results=[(5.0 + 0.01 * n, value) for n, value in enumerate(values)])
    table = bench.table("seeds")
    family = dunnett.family(base, [b, c, d])
    assert (family.control, family.rows, family.freedom) == (5, (3, 5, 1), 10)
    for key, values in (("B", b), ("C", c), ("D", d)):
        test, change = found_in(table, "bleu")[key], np.mean(values) - np.mean(base)
        separate = dunnett.t3(base, values, 3)
        families = [family, *([separate] if separate else [])]
        assert test.p == pytest.approx(max(of.p(change, len(values)) for of in families), rel=1e-9)
        half = max(of.critical() * of.error(len(values)) for of in families)
        assert (test.low, test.high) == pytest.approx((change - half, change + half))
        assert test.by == (BOTH if separate else DUNNETT)
        assert (test.paired is None) == (key != "C"), "three seeds do not pair with five"
    [note] = [note for note, *_ in table.test_notes if note.startswith("BLEU (dev): 3 rows compared")]
    assert f"{power.detectable_by_both(family):.2f} (in a row of 1 seed) with 80 % power" in note
    assert note.endswith("one side has a single seed: D.")
    assert f"({BOTH}; or {DUNNETT})" in table.test_notes[0].text


def test_bold_is_the_best_and_by_choice_what_cannot_be_told_from_it(bench):
    """Of a metric that should be high the highest, of a perplexity the lowest."""
    rows = {"base": (5.0, 25.0), "B": (4.0, 22.0), "C": (5.9, 28.0), "D": (4.01, 27.9)}
    for number, (key, (ppl, bleu)) in enumerate(rows.items()):
        noise = (-0.02, 0.0, 0.02)
        changes = {"model.d_k": 16 * number} if number else {}
        bench.row(key, changes, results=[(ppl + e, bleu + 10 * e) for e in noise])
    for choice, expected in (
        ("best", {"ppl": {"B"}, "bleu": {"C"}}),
        ("undistinguished", {"ppl": {"B", "D"}, "bleu": {"C", "D"}}),
    ):
        bench.study["bold"] = choice
        table = bench.table()
        best = {key: {row.key for row in table.rows if row.measures[key].best} for key in ("ppl", "bleu")}
        assert best == expected


def test_nothing_is_bold_where_not_all_can_be_compared(bench):
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE)
    bench.row("V", {"data.vocab_size": 1000}, results=[(9.0, 25.2), (9.1, 25.0), (9.2, 24.9)])
    table = bench.table()
    best = {key: {row.key for row in table.rows if row.measures[key].best} for key in ("ppl", "bleu")}
    assert best == {"ppl": set(), "bleu": {"base", "V"}}, "perplexities over other pieces"
    bench.row("M", {"model.d_k": 32}, results=[*BASE[:2], None])
    assert not any(row.measures["bleu"].best for row in bench.table().rows), "a value is missing"


def test_a_failed_row_does_not_remove_bold(bench):
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE)
    bench.row("F", {"model.d_k": 32}, results=[*BASE[:2], None], states=["finished", "finished", "failed"])
    table = bench.table()
    assert [row.measures["bleu"].best for row in table.rows] == [True, False, False]
    assert Note("Bold: the best of its column among the rows that have a number.", "sign") in table.footnotes
    bench.row("R", {"model.d_k": 64}, results=[*BASE[:2], None], states=["finished", "finished", "running"])
    assert not any(row.measures["bleu"].best for row in bench.table().rows), "it may become the best"


def test_where_rows_cannot_be_told_apart_none_is_bold(bench):
    bench.study["bold"] = "undistinguished"
    table = bench.row("base", results=BASE).row("C", {"model.d_k": 32}, results=ALIKE).table()
    assert table.test == "seeds" and not any(row.measures["bleu"].best for row in table.rows)


@pytest.mark.parametrize("seeds", [1, 2])
def test_asked_for_two_seeds_are_tested_and_one_shows_no_spread(bench, seeds):
    table = bench.row("base", results=BASE[:seeds]).row("B", {"model.d_k": 16}, results=WORSE[:seeds]).table("seeds")
    found = found_in(table, "bleu")["B"]
    if seeds == 1:
        assert found is None and any("shows no spread between seeds" in note for note, *_ in table.test_notes)
    else:
        one, other = ([bleu for _, bleu in values[:2]] for values in (WORSE, BASE))
        assert found.p == pytest.approx(stats.ttest_ind(one, other, equal_var=False).pvalue, abs=1e-9)
        assert found.by == OF_ONE_ROW
        differences = np.subtract(one, other)
        assert found.paired == pytest.approx(stats.t.interval(0.95, 1, differences.mean(), stats.sem(differences)))


def test_without_a_base_nothing_is_tested(bench):
    table = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE).table("none")
    alone = replace(table, base=None)
    bleu = table.columns[1]
    for mode in ("seeds", "sentences"):
        made = with_counts(alone, {}, mode)
        assert made.test == "" and not any(found_in(made, "bleu").values())
        assert made.test_notes == (Note("No significance test: base is not in the table.", "sign"),)
    assert by_counts(alone, bleu, lambda *_: None) == by_shares(alone, bleu, None) == paired(alone, bleu) == ({}, "")
    assert by_shares(table, table.columns[0], None)[0] == {}


def test_a_spread_needs_two_values():
    with pytest.raises(ValueError, match="two data points"):
        dunnett.spread([1.0])
    assert dunnett.spread([1.0, 3.0])[0] == pytest.approx(2**0.5)
