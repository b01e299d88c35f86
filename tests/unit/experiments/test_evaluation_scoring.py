"""BLEU equals its formula, and the right counts are kept per sentence."""

import math

import numpy as np
import pytest

from experiments.evaluation.scoring import bleu, score_text

TRANSLATIONS = ["The cat sat on the mat .", "A dog runs fast through snow.", ""]
REFERENCES = ["The cat sat on a mat .", "A dog runs through the deep snow.", "Nothing"]


def test_bleu_is_the_formula() -> None:
    """Eight of nine words match a reference of nine words, so there is no brevity penalty."""
    scores = score_text(["a b c d e f g h x"], ["a b c d e f g h i"])
    precision = [8 / 9, 7 / 8, 6 / 7, 5 / 6]
    assert scores.metrics["bleu"] == pytest.approx(100 * math.prod(precision) ** 0.25)
    short = score_text(["a b c d e f g h"], ["a b c d e f g h i j"])
    assert short.metrics["bleu"] == pytest.approx(100 * math.exp(1 - 10 / 8))
    assert short.metrics["bleu"] != pytest.approx(100 * min(1, 8 / 10), rel=0.01)


def test_statistics_are_the_counts_of_each_sentence() -> None:
    scores = score_text(TRANSLATIONS, REFERENCES)
    lengths, correct, total = [7, 7], [6, 4, 2, 1], [7, 6, 5, 4]
    assert scores.statistics[0].tolist() == [*lengths, *correct, *total]
    assert scores.statistics[2].tolist() == [0, 1, *[0] * 8]


def test_statistics_add_up_to_corpus_bleu_of_any_selection() -> None:
    scores = score_text(TRANSLATIONS, REFERENCES)
    assert bleu(scores.statistics.sum(axis=0)) == pytest.approx(scores.metrics["bleu"])
    chosen = [1, 0, 1]
    resampled = score_text([TRANSLATIONS[i] for i in chosen], [REFERENCES[i] for i in chosen])
    assert bleu(scores.statistics[chosen].sum(axis=0)) == pytest.approx(resampled.metrics["bleu"])
    assert scores.statistics.dtype == np.int64


def test_case_counts_and_signatures_say_how() -> None:
    scores = score_text(["the CAT sat on the mat"], ["the cat sat on the mat"])
    assert scores.metrics["bleu"] < 100
    same = score_text(["the cat sat on it"], ["the cat sat on it"])
    assert {"bleu", "chrf"} <= same.metrics.keys() == same.signatures.keys()
    assert all(value == pytest.approx(100) for value in same.metrics.values())
    assert "tok:13a" in scores.signatures["bleu"]
    assert "case:mixed" in scores.signatures["bleu"]
    assert "version:" in scores.signatures["chrf"]
