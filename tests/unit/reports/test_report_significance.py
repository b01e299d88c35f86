"""The changes that a table marks, the test, and the notes on it."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from experiments.errors import UserError
from experiments.identity import with_members
from reports.audit.compare import compare
from reports.render.formats import render
from reports.results import dunnett
from reports.results.resampling import by_counts, by_shares
from reports.results.significance import ENOUGH_SEEDS, paired, with_tests
from reports.results.table import Note
from reports.table.build import record
from reports.table.notes import kendall

BASE = [(5.0, 25.0), (5.1, 25.2), (4.9, 24.9)]
WORSE = [(5.6, 22.1), (5.5, 22.0), (5.7, 22.3)]
ALIKE = [(5.05, 25.1), (4.95, 24.8), (5.1, 25.3)]


def found_in(table, key):
    return {row.key: row.measures[key].test for row in table.rows}


def with_counts(table, counts, mode):
    return with_tests(table, mode, lambda outcome, column: counts.get(outcome.run.run_id))


def counts_of(quality, size=200, seed=1):
    """Sentences of ten words, of which a share `quality` (with its n-grams) is correct."""
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
    assert "p < .05 against base (Dunnett)." in text and "on 6 degrees of freedom" in notes
    assert r"\rlap{$^{{*}}$} &" in render(table, "latex")


def test_values_of_another_order_are_not_said_to_be_alike(bench):
    """The spread of base is real, and nothing beside 1e24."""
    bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=[(5.0, 1e24)] * 3)
    assert any(
        "BLEU (dev): not tested, its spread between seeds is lost beside" in n for n, *_ in bench.table().test_notes
    )


def test_what_stands_behind_the_sign_is_said_where_it_is_printed(bench):
    bench.row("base", results=[*BASE[:2], None])
    assert not any("sample standard deviation" in note for note, *_ in bench.table().footnotes)
    bench.row("B", {"model.d_k": 16}, results=BASE)
    assert Note("Values over 3 seeds are mean ± sample standard deviation.", "sign") in bench.table().footnotes


def test_a_number_without_a_logarithm_is_said_to_have_no_change(bench):
    table = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=[(-1.0, 22.0)] * 3).table()
    assert table.rows[1].measures["ppl"].change is None
    why = "PPL (dev): zero or less has no logarithm, so that there is no change from or to it."
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
    bench.runs[-1] = replace(bench.runs[-1], inputs=with_members(bench.runs[-1].inputs, ["base#1", "base#2"]))
    table = bench.table()
    assert table.test == "seeds"
    for key in ("ppl", "bleu"):
        found = found_in(table, key)
        assert found["E"] is None and found["B"] == found_in(without, key)["B"]
        assert table.rows[2].measures[key].change is not None


def test_perplexities_are_tested_as_they_are_compared(bench):
    table = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE).table()
    logs = [[math.log(ppl) for ppl, _ in values] for values in (WORSE, BASE)]
    assert found_in(table, "ppl")["B"].p == pytest.approx(stats.ttest_ind(*logs).pvalue, abs=1e-8)
    differences = np.subtract(*logs)
    expected = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    assert found_in(table, "ppl")["B"].paired == pytest.approx(expected)


def test_auto_tests_nothing_with_fewer_seeds_and_says_so(bench):
    table = bench.row("base").row("B", {"model.d_k": 16}, results=[(9.0, 2.0)]).table()
    assert table.test == ""
    assert not any(found_in(table, "bleu").values())
    assert f"One seed: not tested (from {ENOUGH_SEEDS} on)." in render(table, "markdown")
    assert "bleu_p" not in record(table.rows[1], table)


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
    assert any("no counts per sentence are kept of D" in note for note, *_ in table.test_notes)


def test_several_seeds_are_pooled_by_sentence(bench):
    """A sentence is swapped with all its translations, so more seeds are not more sentences."""
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


def test_unequal_variances_are_noticed_said_and_tested_with_t3(bench):
    values = {"base": (97.3, 0.8), "B": (99.1, 0.05), "C": (99.2, 0.05)}
    for place, (key, (mean, sd)) in enumerate(values.items()):
        results = [(5.0 + step, mean + step * sd) for step in (-1, 0, 1)]
        bench.row(key, {"model.d_k": 16 + place} if place else {}, results=results)
    table = bench.table()
    for row in table.rows[1:]:
        test, perplexity = row.measures["bleu"].test, row.measures["ppl"].test
        family = dunnett.t3([96.5, 97.3, 98.1], [value for _, value in bench_values(row)], 2)
        assert test.p == pytest.approx(family.p(row.measures["bleu"].change, 3))
        assert (test.by, perplexity.by) == ("Dunnett's T3, for unequal variances", "Dunnett")
        assert not test.marked
    assert table.test_notes[0].text == (
        "*: p < .05 against base (Dunnett; BLEU (dev) by Dunnett's T3, for unequal variances)."
    )
    [note] = [note for note, *_ in table.test_notes if note.startswith("BLEU (dev): ")]
    assert "unequal variances (sd 0.05 to 0.80; Bartlett p < .05)" in note
    least = dunnett.detectable(family, 3)
    assert f"{least:.2f} (C) may be missed" in note


def bench_values(row):
    return list(zip(row.measures["ppl"].values, row.measures["bleu"].values, strict=True))


def test_variances_as_unequal_as_chance_makes_them_are_noticed_and_pooled(bench):
    bench.row("base", results=[(5.0, 25.0), (5.1, 25.1), (4.9, 24.9)])
    table = bench.row("B", {"model.d_k": 16}, results=[(5.5, 22.0), (5.6, 22.3), (5.4, 21.7)]).table()
    assert table.rows[1].measures["bleu"].test.by == "Dunnett"
    [note] = [note for note, *_ in table.test_notes if note.startswith("BLEU (dev): ")]
    assert "(the rows' own differ, as equal ones do by chance: Bartlett p = 0.2)" in note


def test_rows_without_any_spread_are_not_tested_beside_others(bench):
    """A deterministic trainer: no star without a test, and no crash."""
    bench.row("base", results=[(5.0, 25.0)] * 3).row("B", {"model.d_k": 16}, results=[(6.0, 24.0)] * 3)
    table = bench.row("C", {"model.d_k": 32}, results=WORSE).table()
    found = found_in(table, "bleu")
    assert found["B"] is None and found["C"].marked
    assert any(note.endswith("not tested, without a spread: B.") for note, *_ in table.test_notes)
    assert [row.measures["bleu"].best for row in table.rows] == [True, False, False]
    assert record(table.rows[0], table)["bleu_best"] is True


def test_rows_of_other_numbers_of_seeds_are_one_family(bench):
    """The error of each is by its own number; the note tells the difference that the smallest row shows."""
    base, b, c = [25.0, 25.4, 24.7, 25.1, 25.2], [23.0, 23.3, 22.8], [25.5, 25.6, 25.1, 25.4, 25.9]
    for number, (key, values) in enumerate((("base", base), ("B", b), ("C", c))):
        changes = {"model.d_k": 16 * number} if number else {}
        bench.row(key, changes, results=[(5.0 + 0.01 * n, value) for n, value in enumerate(values)])
    table = bench.table("seeds")
    family = dunnett.family(base, [b, c])
    assert (family.control, family.rows, family.freedom) == (5, (3, 5), 10)
    for key, values in (("B", b), ("C", c)):
        test, d = found_in(table, "bleu")[key], np.mean(values) - np.mean(base)
        half = family.critical() * (family.variance * (1 / len(values) + 1 / 5)) ** 0.5
        assert test.p == pytest.approx(family.p(d, len(values)), rel=1e-9)
        assert (test.low, test.high) == pytest.approx((d - half, d + half))
        assert test.marked == (abs(d) >= dunnett.detectable(family, len(values))) == (key == "B")
        assert (test.paired is None) == (key == "B"), "three seeds do not pair with five"
    [note] = [note for note, *_ in table.test_notes if note.startswith("BLEU (dev): 2 rows compared")]
    assert f"Differences below {dunnett.detectable(family, 3):.2f} (a row of 3 seeds) may be missed" in note
    assert f"sd {family.variance**0.5:.2f} on 10 degrees" in note
    assert f"p is .05 at {family.critical() * family.error(3):.2f}." in note


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
        assert found.p == pytest.approx(stats.ttest_ind(one, other).pvalue, abs=1e-9)
        differences = np.subtract(one, other)
        assert found.paired == pytest.approx(stats.t.interval(0.95, 1, differences.mean(), stats.sem(differences)))


def test_without_a_base_nothing_is_tested(bench):
    table = bench.row("base", results=BASE).row("B", {"model.d_k": 16}, results=WORSE).table("none")
    alone = replace(table, base=None)
    bleu = table.columns[1]
    for mode in ("seeds", "sentences"):
        made = with_counts(alone, {}, mode)
        assert made.test == "" and not any(found_in(made, "bleu").values())
        assert made.test_notes == (Note("No change is tested: base is not in the table.", "sign"),)
    assert by_counts(alone, bleu, lambda *_: None) == by_shares(alone, bleu, None) == paired(alone, bleu) == ({}, "")
    assert by_shares(table, table.columns[0], None)[0] == {}


def test_a_spread_needs_two_values():
    with pytest.raises(ValueError, match="two values"):
        dunnett.spread([1.0])
    assert dunnett.spread([1.0, 3.0])[0] == pytest.approx(2**0.5)
