"""Tests between seeds equal scipy's Dunnett and Student's t tests."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import levels
from reports.results.dunnett import ALPHA, Family, family, t3, t_interval, undistinguished
from reports.results.power import detectable


@pytest.mark.parametrize(("rows", "n", "control"), [(2, 3, 3), (5, 3, 3), (4, 2, 6), (3, 10, 5)])
def test_p_values_are_scipys_up_to_its_random_draws(rows, n, control):
    rng = np.random.default_rng(rows)
    base = rng.normal(size=control)
    others = [rng.normal(rng.normal(), size=n) for _ in range(rows)]
    fam = family(base.tolist(), [list(row) for row in others])
    found = [fam.p(row.mean() - base.mean(), n) for row in others]
    oracle = stats.dunnett(*others, control=base, rng=np.random.default_rng(1)).pvalue
    assert found == pytest.approx(oracle, abs=2e-3)


def test_one_row_is_students_t():
    base, row = [1.0, 2.0, 4.0], [3.0, 5.0, 5.5]
    fam = family(base, [row])
    assert fam.p(np.mean(row) - np.mean(base), 3) == pytest.approx(stats.ttest_ind(row, base).pvalue, abs=1e-10)
    for freedom in (1, 2, 7, 60, 2000):
        assert Family(2, (2,), 1.0, freedom).critical() == pytest.approx(stats.t.isf(0.025, freedom), rel=1e-4)


def test_critical_values_of_dunnetts_table():
    """Critical values equal those of Dunnett 1955/1964: two-sided, 5 %, equal group sizes."""
    table = {(3, 8): 2.88, (3, 12): 2.68, (9, 20): 2.95}
    for (rows, freedom), value in table.items():
        assert Family(4, (4,) * rows, 1.0, freedom).critical() == pytest.approx(value, abs=0.006)


def test_rows_of_other_sizes_and_many_of_them():
    assert 0 < Family(3, (3, 5, 10), 1.0, 12).p(1.0, 5) < 1
    wide, narrow = Family(3, (3,) * 300, 1.0, 600).critical(), Family(3, (3,) * 10, 1.0, 600).critical()
    assert 4 > wide > narrow > 1.96


def test_no_spread_is_no_test():
    assert family([1.0, 1.0], [[2.0, 2.0]]) is None
    assert family([1.0], [[2.0]]) is None
    assert family([1.0, 2.0], []) is None


def test_the_detectable_difference_is_detected_that_often():
    rng = np.random.default_rng(7)
    fam = Family(3, (3,) * 4, 1.0, 10)
    shift, limit = detectable(fam, 3), fam.critical()
    hits = 0
    for _ in range(2000):
        base, *rows = rng.normal(size=(5, 3))
        spread = family(list(base), [list(row) for row in rows])
        hits += abs(rows[0].mean() + shift - base.mean()) / spread.error(3) > limit
    assert hits / 2000 == pytest.approx(0.8, abs=0.03)


def test_under_no_effect_claims_stay_within_five_percent():
    """1,000 tables of 19 rows and base with three seeds each from one distribution: Table 3 without any effect."""
    rng = np.random.default_rng(8)
    limit = Family(3, (3,) * 19, 1.0, 40).critical()
    claims = 0
    for _ in range(1000):
        base, *rows = rng.normal(25, 0.2, size=(20, 3))
        fam = family(list(base), [list(row) for row in rows])
        claims += max(abs(row.mean() - base.mean()) for row in rows) / fam.error(3) > limit
    assert 20 < claims <= 50 + 2.6 * (0.05 * 0.95 * 1000) ** 0.5


def test_t_interval():
    values = [1.0, 2.0, 4.0, 4.5]
    expected = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    assert t_interval(values) == pytest.approx((np.mean(values), *expected))
    assert t_interval([1.0]) == (1.0, -np.inf, np.inf)


@pytest.mark.parametrize(
    ("rows", "freedom", "value"),
    [(2, 5, 3.091), (3, 5, 3.399), (2, 10, 2.609), (3, 10, 2.829), (5, 10, 3.103), (10, 10, 3.466), (6, 10, 3.199)],
)
def test_critical_values_of_the_studentized_maximum_modulus(rows, freedom, value):
    """Critical values equal those of Stoline & Ury 1979 (Technometrics 21:87) at 5 %."""
    assert Family(3, (3,) * rows, 1.0, freedom, correlated=False).critical() == pytest.approx(value, abs=1.5e-3)


def test_the_integral_for_fractional_degrees_of_freedom_is_scipys():
    """The reference is the expectation of (2 Φ(t S) − 1)^rows over S = √(χ²/ν)."""
    for rows, freedom, t in ((4, 2.7, 3.0), (9, 1.0, 5.0), (19, 5.3, 4.0)):
        quantiles = (np.arange(200_000) + 0.5) / 200_000
        spread = np.sqrt(stats.chi2.ppf(quantiles, freedom) / freedom)
        expected = 1 - np.mean((2 * stats.norm.cdf(t * spread) - 1) ** rows)
        found = Family(3, (3,) * rows, 0.5, freedom, correlated=False)
        assert found.p(t * found.error(3), 3) == pytest.approx(expected, abs=1e-5)


def test_t3_of_one_row_is_welchs_test():
    base, row = [1.0, 2.0, 4.0], [3.0, 5.0, 5.5, 9.0]
    oracle = stats.ttest_ind(row, base, equal_var=False)
    found = t3(base, row)
    assert found.p(np.mean(row) - np.mean(base), 4) == pytest.approx(oracle.pvalue, abs=1e-10)
    assert found.freedom == pytest.approx(oracle.df)
    assert t3([1.0, 1.0], [2.0, 2.0]) is None and t3([1.0], [2.0, 3.0]) is None
    assert t3([1.0, 1.0, 1.0], [2.0, 2.0, 2.5]).freedom == 2.0


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("rows", [2, 7, 19])
def test_with_equal_and_unequal_variances_at_most_five_percent_of_tables_have_a_false_star(rows, seeds):
    """2,000 tables of each case; the larger of the two p-values decides. Dunnett's test alone marks far more."""
    chance = np.random.default_rng(10 * seeds + rows)
    found = {name: levels.marked(levels.simulate(chance, 2000, seeds, sds)) for name, sds in levels.cases(rows)}
    shares = {name: marks["both"].any(axis=1).mean() for name, marks in found.items()}
    assert max(shares.values()) <= 0.05 + 2 * (0.05 * 0.95 / 2000) ** 0.5, shares
    assert found["base × 6"]["dunnett"].any(axis=1).mean() > 0.08


def test_the_simulated_stars_are_those_of_the_two_tests():
    values = levels.simulate(np.random.default_rng(4), 40, 3, np.array([1.0, 3.0, 1.0, 1.0]), effect=6.0)
    marks = levels.marked(values)
    for number, (base, *rows) in enumerate(values.tolist()):
        pooled = family(base, rows)
        for place, row in enumerate(rows):
            difference = np.mean(row) - np.mean(base)
            assert marks["dunnett"][number, place] == (pooled.p(difference, 3) < ALPHA)
            assert marks["t3"][number, place] == (t3(base, row, 3).p(difference, 3) < ALPHA)
    assert 0 < marks["both"].sum() < marks["both"].size


def test_what_is_not_told_from_the_best():
    best = [99.0, 99.1, 99.2]
    assert undistinguished(best, [[96.5, 97.3, 98.1], [98.9, 99.0, 99.2], [50.0, 50.0, 50.0]]) == [True, True, False]
    assert undistinguished(best, [[97.0, 97.3, 97.6]]) == [False]
    assert undistinguished([2.0, 2.0], [[1.0, 1.0], [2.0, 2.0]]) == [False, True], "nothing varies"
    assert undistinguished(best, []) == []
    three = [[99.1 - d - 0.1, 99.1 - d, 99.1 - d + 0.1] for d in (0.25, 0.26, 0.27)]
    p_values = [stats.ttest_ind(best, values, equal_var=False).pvalue for values in three]
    assert 0.05 / 3 < min(p_values) < max(p_values) < 0.05, "each alone would be told apart, and Holm tells none"
    assert undistinguished(best, three) == [True, True, True]
