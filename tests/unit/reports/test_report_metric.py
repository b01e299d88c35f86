"""Tests, comparison, figures and notes use a user's metric as its task declares it."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ablations.planning.declare_table import table_spec
from experiments.errors import UserError
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult
from experiments.tasks.columns import Column, Counts
from experiments.tasks.translation import ACCURACY, BLEU, PERPLEXITY, TASK
from reports.audit.compare import as_text, compare
from reports.figures.curves import draw_lengths, read
from reports.results.evaluation_counts import recomputed
from reports.results.evaluation_readers import counts_in, lengths_in
from reports.results.run_outcomes import collect
from reports.table.build import record
from tests.planned_runs import described
from tests.unit.reports.real import Made, said, write

SPEECH = '''
"""Pretends to recognise speech: errors and words of 60 sentences, from which the word error rate follows."""
import math, random
from dataclasses import dataclass
from ablations_task import Counts, column, task

WORDS = Counts(("errors", "words"), lambda sums: 100 * sums[..., 0] / sums[..., 1], length="words")
WER = column("wer", "WER", better="lower", digits=1, counts=WORDS, about="WER: word errors in 100 words.")
SURPRISE = column("surprise", "surprise", better="lower", logarithmic=True)


@dataclass
class Settings:
    rate: float = 0.3
    returned: float = 1.0


@task(Settings, columns=[WER, SURPRISE], cost=lambda settings: 1e9 * settings.rate)
def TASK(settings, context):
    words = [2 + number % 17 for number in range(60)]
    noise = random.Random(f"{settings.rate}")
    errors = [sum(noise.random() < settings.rate for _ in range(many)) for many in words]
    context.examples("test", [{"errors": e, "words": w} for e, w in zip(errors, words)])
    for step in (1, 2):
        context.log(step, wer=100.0 / step)
    return {"wer": settings.returned * 100 * sum(errors) / sum(words), "surprise": math.exp(settings.rate)}
'''
STUDY = """
name = "speech"
title = "Speech"
task = "speech:TASK"

[[variation]]
key = "base"
paper = {wer_test = 9.5, hours = 3.5}

[[variation]]
key = "worse"
set = {rate = 0.5}

[[variation]]
key = "similar"
set = {rate = 0.301}
"""


@pytest.fixture(scope="module")
def speech(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = write(tmp_path_factory.mktemp("speech"), {"speech.toml": STUDY, "speech.py": SPEECH})
    return Made(folder / "speech.toml", folder.with_name(f"{folder.name}-store")).run()


def kept(made: Made, row: str) -> np.ndarray:
    """Return (errors, words) of each sentence in the store's format."""
    found = made.rows()[row].outcomes[0]
    folder = Store.open(made.store).evaluation_folder(found.run.run_id, found.scored["test"].spec.eval_id)
    lines = (folder / "examples.jsonl").read_text().splitlines()
    return np.array([[json.loads(line)[name] for name in ("errors", "words")] for line in lines])


def test_its_differences_are_tested_between_sentences(speech: Made) -> None:
    table = speech.table("sentences")
    rows = {row.key: row.measures["wer_test"] for row in table.rows}
    base, worse = (kept(speech, key) for key in ("base", "worse"))
    chance = np.random.default_rng(1)
    swap = chance.integers(2, size=(4000, 60))
    one, other = (swap @ a + (1 - swap) @ b for a, b in ((base, worse), (worse, base)))
    differences = abs(one[:, 0] / one[:, 1] - other[:, 0] / other[:, 1])
    observed = abs(rows["worse"].change) / 100
    assert rows["worse"].change == pytest.approx(100 * (worse - base)[:, 0].sum() / base[:, 1].sum())
    assert rows["worse"].test.p == pytest.approx(2 * (differences >= observed - 1e-9).mean(), abs=0.01)  # Holm: twice
    assert rows["worse"].test.marked and rows["worse"].test.low < rows["worse"].change < rows["worse"].test.high
    assert not rows["similar"].test.marked
    assert said(table, "surprise: no test between sentences")  # of a logarithmic one no shares are averaged


def test_its_notes_and_changes_follow_its_declaration(speech: Made) -> None:
    table = speech.table()
    assert said(table, "WER: word errors in 100 words.") and said(table, "natural logarithm, for surprise)")
    assert table.rows[1].measures["surprise_test"].change == pytest.approx(0.5 - 0.3)  # ln(e^0.5) - ln(e^0.3)


@pytest.mark.process
def test_a_score_that_its_counts_do_not_give_is_left_out(speech: Made, tmp_path: Path) -> None:
    made = speech.copied(tmp_path / "wrong")
    made.study.write_text(STUDY + '\n[[variation]]\nkey = "wrong"\nset = {returned = 1.1}\n')
    made.run(rows="wrong")
    table = made.table()
    assert said(table, "wrong (seed 1) is left out", "result.json says wer = ", "and the counts beside it give")
    assert [row.measures["wer_test"].mean is None for row in table.rows] == [False, False, False, True]
    for row, outcome in zip(
        table.rows[:3], collect(table_spec(made.chosen().plan).runs, Store.open(made.store)), strict=False
    ):
        folder = Store.open(made.store).evaluation_folder(outcome.run.run_id, outcome.scored["test"].spec.eval_id)
        assert recomputed(table.columns[0], folder, EvaluationResult()) == pytest.approx(row.measures["wer_test"].mean)


def test_it_is_compared_over_sentences(speech: Made) -> None:
    table, counts = speech.table("none"), counts_in(Store.open(speech.store))
    swapped = {"base": "worse", "worse": "base"}
    other = replace(table, rows=tuple(described(row, key=swapped.get(row.key, row.key)) for row in table.rows))
    cells = list(compare(table, other, (counts, counts)))
    moved = {(cell.row, cell.column.metric): cell for cell in cells}
    assert moved["base", "wer"].over == "sentences" and moved["base", "wer"].moved
    assert (moved["base", "wer"].low, moved["base", "wer"].high) == pytest.approx(
        (-moved["worse", "wer"].high, -moved["worse", "wer"].low)
    )
    assert moved["base", "surprise"].difference == pytest.approx(0.3 - 0.5)
    assert "Differences of surprise are differences of natural logarithms." in as_text(cells, "", {})


def test_published_hours_have_hours_beside_them(speech: Made) -> None:
    table = speech.table()
    for row in table.rows:
        seconds = row.outcomes[0].record.train_s
        assert record(row, table)["train_hours"] == pytest.approx(seconds / 3600)
    assert said(table, "Training hours: of all attempts together")
    assert record(table.rows[0], table)["paper"] == {
        "wer_test": 9.5, "surprise_test": None, "params": None, "flops": None, "hours": 3.5
    }  # fmt: skip


@pytest.mark.slow  # matplotlib
def test_it_has_figures(speech: Made) -> None:
    table, store = speech.table(), Store.open(speech.store)
    with draw_lengths(table, counts_in(store), lengths_in(store)) as figure:
        assert figure is not None and "WER" in figure.get_supylabel()
        lines = {line.get_label(): line for panel in figure.axes for line in panel.get_lines()}
    base = kept(speech, "base")
    shortest = np.argsort(base[:, 1], kind="stable")[:20]
    x, y = (values[0] for values in lines["base"].get_data())
    errors, words = base[shortest].sum(axis=0)
    assert (x, y) == pytest.approx((words / 20, 100 * errors / words))
    curves, shown = read(table, store)
    assert shown is not None and shown.words == "wer while training" and set(curves) == {"base", "worse", "similar"}
    assert [values.tolist() for values in curves["base"]] == [[1, 2], [100.0, 50.0]]


def test_a_study_prints_a_metric_of_its_task_as_the_task_compares_it() -> None:
    """[[metric]] gives a head and a set; the task knows that perplexity is logarithmic."""
    asked = Column("p", "test", "perplexity", "P", "lower", 1), Column("b", "dev", "chrf", "chrF", "higher", 1)
    ppl, chrf = TASK.with_columns(asked).columns
    assert (ppl.header, ppl.logarithmic, ppl.per_piece) == ("P", True, True) and chrf == asked[1]
    assert TASK.columns[:3] == (PERPLEXITY, ACCURACY, BLEU)


@pytest.mark.parametrize("value", [lambda sums: sums.sum(), lambda sums: 1 / 0], ids=["one number", "an error"])
def test_a_function_that_is_none_of_sums_is_the_users_mistake(value) -> None:
    with pytest.raises(UserError, match=r"The function of the counts errors, words .*sums\[\.\.\., 0\]"):
        Counts(("errors", "words"), value).of(np.ones((3, 2)))


def test_real_numbers_per_sentence_are_summed_as_they_are(tmp_path: Path) -> None:
    """The mean of a learned score per sentence, which is not an integer."""
    scores = np.random.default_rng(2).random(50)
    np.save(tmp_path / "scores.npy", np.stack([scores, np.ones(50)], axis=1))
    counts = Counts(("score", "one"), lambda sums: sums[..., 0] / sums[..., 1], "scores.npy")
    column = Column("comet", "dev", "comet", "COMET", "higher", 3, counts=counts)
    assert math.isclose(recomputed(column, tmp_path, EvaluationResult(sentences=50)), scores.mean())
