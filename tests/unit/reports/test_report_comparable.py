"""Changes from base exist only between numbers of the same quantity, on the column's scale."""

import math

import pytest

from reports.results.table import (
    change_digits,
    change_from,
    change_so_far,
    compared_values,
    one_basis,
    reported_change,
    tokenizer_of,
)
from tests.unit.reports.conftest import COLUMNS

PPL, BLEU = COLUMNS[:2]


def rows_of(bench):
    return {row.key: row for row in bench.table("none").rows}


def changes(row, base):
    return [change_from(row, base, column) for column in (PPL, BLEU)]


def test_a_change_is_a_difference_of_means_of_logarithms_where_the_column_is_logarithmic(bench):
    bench.row("base", results=[(5.0, 25.0), (6.0, 26.0)]).row("B", {"model.d_k": 16}, results=[(4.0, 28.5)] * 3)
    rows = rows_of(bench)
    base_log = (math.log(5.0) + math.log(6.0)) / 2
    assert changes(rows["B"], rows["base"]) == pytest.approx([math.log(4.0) - base_log, 3.0])
    assert changes(rows["base"], rows["base"]) == [None, None]
    assert compared_values([1.0, math.e], PPL) == pytest.approx([0.0, 1.0]) and compared_values((1, 2), BLEU) == [
        1,
        2,
    ]
    assert change_digits(PPL) == 3 and change_digits(BLEU) == BLEU.digits == 1


def test_with_a_seed_missing_there_is_a_change_so_far_alone(bench):
    bench.row("base", results=[(5.0, 25.0)] * 2).row("B", {"model.d_k": 16}, results=[(4.0, 28.0), None])
    bench.row("C", {"model.d_k": 32}, results=[None, None])
    rows = rows_of(bench)
    assert changes(rows["B"], rows["base"]) == changes(rows["base"], rows["B"]) == [None, None]
    assert change_so_far(rows["B"], rows["base"], BLEU) == 3.0
    assert change_so_far(rows["base"], rows["B"], BLEU) == -3.0
    assert change_so_far(rows["C"], rows["base"], BLEU) is None
    assert change_so_far(rows["base"], rows["C"], BLEU) is None


@pytest.mark.parametrize(("value", "number"), [(0.0, None), (-1.0, None), (1e-300, math.log(1e-300) - math.log(5.0))])
def test_what_has_no_logarithm_has_no_change_to_it_or_from_it(bench, value, number):
    bench.row("base", results=[(5.0, 25.0)]).row("B", {"model.d_k": 16}, results=[(value, 25.0)])
    rows = rows_of(bench)
    assert changes(rows["B"], rows["base"]) == [number if number is None else pytest.approx(number), 0.0]
    assert changes(rows["base"], rows["B"])[0] == (number if number is None else pytest.approx(-number))


def test_a_difference_beyond_all_numbers_is_none(bench):
    bench.row("base", results=[(5.0, -1.7e308)]).row("B", {"model.d_k": 16}, results=[(5.0, 1.7e308)])
    rows = rows_of(bench)
    assert changes(rows["B"], rows["base"]) == [0.0, None]


def test_a_perplexity_counts_by_piece_and_a_bleu_does_not(bench):
    """Another number of pieces, or another tokenizer of the same size, and the same again."""
    tokenizer = {"data": {"tokenizer": {"sha256": {"source": "a" * 64, "target": "b" * 64}}}}
    other = {"data": {"tokenizer": {"sha256": {"source": "c" * 64, "target": "b" * 64}}}}
    bench.row("base", record=tokenizer).row("same", {"model.d_k": 16}, record=tokenizer)
    bench.row("size", {"data.vocab_size": 1000}, record=tokenizer).row("text", {"model.d_k": 32}, record=other)
    rows = rows_of(bench)
    found = {key: changes(row, rows["base"]) for key, row in rows.items() if key != "base"}
    assert found == {"same": [0.0, 0.0], "size": [None, 0.0], "text": [None, 0.0]}
    (outcome,) = rows["base"].outcomes
    assert tokenizer_of(outcome) == ("aaaaaaaaaa bbbbbbbbbb", outcome.run.config.data.vocab_size)
    assert one_basis([rows["base"], rows["same"]], PPL) and one_basis(rows.values(), BLEU)
    assert not one_basis(rows.values(), PPL) and one_basis([], PPL)


@pytest.mark.parametrize(
    "scored", [{"signature": {"bleu": "tok:intl"}}, {"signature": {}}], ids=["another signature", "no signature"]
)
def test_a_bleu_under_another_signature_is_another_quantity(bench, scored):
    bench.row("base").row("B", {"model.d_k": 16}, scored=scored)
    rows = rows_of(bench)
    assert changes(rows["B"], rows["base"]) == [0.0, None]


def test_scores_of_other_sentences_are_not_compared_ours_or_the_papers(bench):
    bench.row("base", paper={"bleu": 25.8}).row("same", {"model.d_k": 16}, paper={"bleu": 25.1})
    bench.row("other", {"model.d_k": 32}, inputs={"text": "other"}, paper={"bleu": 20.0})
    bench.row("none", {"model.d_k": 128})
    rows = rows_of(bench)
    assert changes(rows["other"], rows["base"]) == [None, None]
    reported = {key: reported_change(row, rows["base"], BLEU) for key, row in rows.items()}
    assert reported == {"base": None, "same": pytest.approx(-0.7), "other": None, "none": None}
    assert reported_change(rows["base"], rows["none"], BLEU) is None


def test_a_seed_without_a_value_sets_no_basis(bench):
    """Its score is not in the mean, whatever tokenizer it had."""
    bench.row("base", results=[(5.0, 25.0)] * 2)
    bench.row("B", {"model.d_k": 16}, results=[(4.0, 26.0), (4.0, 26.0)])
    late = bench.runs[-1]
    bench.store.results[late.run_id]["data"] = {"tokenizer": {"sha256": {"source": "f" * 64}}}
    rows = rows_of(bench)
    assert change_so_far(rows["B"], rows["base"], PPL) is None
    (evaluation,) = bench.runs[-1].evaluations
    bench.store.evaluations[late.run_id, evaluation.eval_id]["metrics"] = {"perplexity": math.nan, "bleu": 26.0}
    rows = rows_of(bench)
    assert change_so_far(rows["B"], rows["base"], PPL) == pytest.approx(math.log(4.0 / 5.0))
    assert rows["B"].measures["ppl"].change is None
