"""Tests between sentences equal sacrebleu's, and find no effect where there is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sacrebleu.metrics import BLEU
from sacrebleu.significance import PairedTest

from experiments.evaluation.scoring import bleu
from reports.results.dunnett import holm
from reports.results.resampling import SEED, _precision, bootstrap, pooled, randomise

WORDS = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", ".", ","]


def sentences(rng, size):
    return [" ".join(rng.choice(WORDS, rng.integers(1, 14))) for _ in range(size)]


def translated(rng, references, errors):
    """Return references in which each word is replaced with probability `errors`."""
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


def exact_p(base, row, of, trials):
    """Compute p by the definition with the same swaps, in integers of any size."""
    swaps = np.random.default_rng(SEED).integers(2, size=(trials, len(base)), dtype=bool)
    lines = list(zip(base.tolist(), row.tolist(), strict=True))

    def difference(swapped):
        chosen = [(r, b) if swap else (b, r) for swap, (b, r) in zip(swapped, lines, strict=True)]
        of_base, of_row = ([sum(column) for column in zip(*side, strict=True)] for side in zip(*chosen, strict=True))
        return abs(of(of_row) - of(of_base))

    observed = difference([False] * len(lines))
    return (sum(difference(swapped) >= observed for swapped in swaps) + 1) / (trials + 1)


@pytest.mark.parametrize("scale", [1, 2**20, 2**40])
def test_sums_beyond_single_precision_are_exact(scale):
    """Differences of one beside sums that 32-bit floats round: p is that of whole numbers."""
    rng = np.random.default_rng(9)
    base = rng.integers(0, 40, (12, 2)) + scale
    row = base.copy()
    row[:, 0] += rng.integers(-1, 3, 12)
    found = randomise(base, [row], lambda sums: sums[..., 0] - sums[..., 1], 300)[0]
    assert found.p == exact_p(base, row, lambda sums: sums[0] - sums[1], 300)
    assert found.difference == (row - base)[:, 0].sum()


def test_which_sums_are_exact_in_single_precision():
    """Of all sentences of a column together, with their signs lost, and twice: base and row are added."""
    for largest, precision in ((2**23 - 1, np.float32), (2**23, np.float64)):
        parts = np.array([[largest - 5, 1], [-5, 1]])
        assert _precision(parts) is precision and _precision(parts * 0, parts) is precision
    assert _precision(np.array([[2**22, 2**22 - 1]])) is np.float32, "columns are not added to each other"
    assert _precision(np.array([[0.5, 1.0]])) is np.float64, "real numbers"


def test_a_difference_within_the_smallest_unit_is_a_tie():
    """Swaps that give the observed difference again count as extreme, although sums of floats differ in their order."""
    base, row = np.array([[0.1], [0.2], [0.3]]), np.array([[0.3], [0.1], [0.2]])
    found = randomise(base, [row, row + 1.0], lambda sums: sums[..., 0], 400)
    assert found[0].p == 1.0 and abs(found[0].difference) < 1e-9
    swaps = np.random.default_rng(SEED).integers(2, size=(400, 3), dtype=bool)
    alike = sum(swap.all() or not swap.any() for swap in swaps)
    assert found[1].difference == pytest.approx(3.0) and found[1].p == (alike + 1) / 401


def test_pooled_counts_are_added_by_sentence_and_keep_their_kind():
    one, other = np.array([[1, 2], [3, 4]], dtype=np.int16), np.array([[10, 20], [30, 40]], dtype=np.int64)
    added = pooled([one, other])
    assert added.tolist() == [[11, 22], [33, 44]] and added.dtype == np.int32
    real = pooled([one, other / 4])
    assert real.tolist() == [[3.5, 7.0], [10.5, 14.0]] and real.dtype == np.float64


def test_a_bootstrap_interval_is_that_of_the_percentiles_of_resampled_differences():
    rng = np.random.default_rng(10)
    base, row = rng.integers(0, 9, (20, 1)), rng.integers(2, 11, (20, 1))
    found = bootstrap(base, [row], lambda sums: sums[..., 0] / 20.0, 500)[0]
    drawn = np.random.default_rng(SEED).choice(20, size=(500, 20), replace=True)
    differences = (row - base)[drawn, 0].sum(axis=1) / 20.0
    assert (found.low, found.high) == pytest.approx(tuple(np.percentile(differences, (2.5, 97.5))))
    extreme = (abs(differences) - abs(differences).mean() > abs(found.difference) - 1e-9).sum()
    assert found.p == (extreme + 1) / 501


def test_holm_never_falls_and_never_exceeds_one():
    p = {"a": 0.02, "b": 0.011, "c": 0.4, "d": 0.0205}
    assert holm(p) == pytest.approx({"a": 0.06, "b": 0.044, "c": 0.4, "d": 0.06})
    assert list(holm(p)) == list(p)
    assert holm({"a": 0.01, "b": 0.01}) == {"a": 0.02, "b": 0.02}
