"""Tests between sentences: sacrebleu is the oracle, and no effect is claimed where there is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from experiments.evaluation.counts import bleu
from reports.results.resampling import bootstrap, holm, randomise

WORDS = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", ".", ","]


def sentences(rng, size):
    return [" ".join(rng.choice(WORDS, rng.integers(1, 14))) for _ in range(size)]


def translated(rng, references, errors):
    """References with each word replaced with probability `errors`."""
    return [" ".join(w if rng.random() > errors else rng.choice(WORDS) for w in text.split()) for text in references]


def counts(translations, references):
    return np.array(BLEU()._extract_corpus_statistics(translations, [references]))


@given(st.lists(st.integers(0, 40), min_size=4, max_size=4), st.integers(0, 30), st.integers(0, 30))
def test_bleu_is_sacrebleus(missed, sys_len, ref_len):
    total = [max(0, sys_len - order) for order in range(4)]
    correct = [max(0, n - m) for n, m in zip(total, missed, strict=True)]
    expected = BLEU.compute_bleu(list(correct), list(total), sys_len, ref_len, smooth_method="exp").score
    found = bleu(np.array([sys_len, ref_len, *correct, *total]))
    assert float(found) == pytest.approx(expected, abs=1e-9)
    assert bleu(np.array([[sys_len, ref_len, *correct, *total]] * 2)).shape == (2,)


@pytest.mark.parametrize("seed", [1, 2])
def test_p_values_are_those_of_sacrebleu(seed):
    rng = np.random.default_rng(seed)
    references = sentences(rng, 80)
    systems = [translated(rng, references, errors) for errors in (0.3, 0.3, 0.35, 0.6)]
    ours = [counts(system, references) for system in systems]
    named = [(str(number), system) for number, system in enumerate(systems)]
    for kind, test, draws in (("ar", randomise, 400), ("bs", bootstrap, 300)):
        _, oracle = PairedTest(named, {"BLEU": BLEU()}, [references], test_type=kind, n_samples=draws)()
        found = test(ours[0], ours[1:], bleu, draws)
        assert [r.p for r in found] == [result.p_value for result in oracle["BLEU"][1:]]
        scores = [float(bleu(c.sum(axis=0))) for c in ours]
        assert [r.difference for r in found] == pytest.approx([s - scores[0] for s in scores[1:]])


def test_equal_translations_are_no_evidence():
    """sacrebleu gives its smallest p here: no swap gives a larger difference than no swap at all."""
    rng = np.random.default_rng(3)
    references = sentences(rng, 40)
    base = counts(translated(rng, references, 0.3), references)
    other = base.copy()
    other[7] = counts(["ein zwei"], [references[7]])[0]
    assert [r.p for r in randomise(base, [base, other], bleu, 200)] == [1.0, 1.0]
    assert bootstrap(base, [base], bleu, 200)[0].p == 1.0


def test_many_rows_give_what_each_gives_alone():
    rng = np.random.default_rng(4)
    references = sentences(rng, 30)
    base, *rows = (counts(translated(rng, references, 0.4), references) for _ in range(70))
    for test in (randomise, bootstrap):
        together = test(base, rows, bleu, 1500)
        assert together[:1] + together[-1:] == [*test(base, rows[:1], bleu, 1500), *test(base, rows[-1:], bleu, 1500)]


def test_intervals_hold_the_difference_and_shrink():
    rng = np.random.default_rng(5)
    widths = []
    for size in (50, 800):
        references = sentences(rng, size)
        base, row = (counts(translated(rng, references, e), references) for e in (0.3, 0.5))
        found = bootstrap(base, [row], bleu)[0]
        assert found.low < found.difference < found.high
        widths.append(found.high - found.low)
    assert widths[1] < widths[0] / 2


def test_under_no_effect_claims_stay_within_five_percent():
    """1,000 tables of base against base: both systems' translations of a sentence have the same distribution."""
    rng = np.random.default_rng(6)
    references = sentences(rng, 60)
    pool = np.stack([counts(translated(rng, references, 0.4), references) for _ in range(40)])
    claims = 0
    for _ in range(1000):
        base, *rows = (pool[rng.integers(len(pool), size=60), np.arange(60)] for _ in range(4))
        corrected = holm({str(i): r.p for i, r in enumerate(randomise(base, rows, bleu, 199))})
        claims += min(corrected.values()) <= 0.05
    assert claims / 1000 <= 0.05 + 2.6 * (0.05 * 0.95 / 1000) ** 0.5  # 99.5 % of true 5 % tests pass
    assert claims > 10  # and it is no test that never claims


def test_holms_correction():
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({"a": 0.6, "b": 0.9}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}
