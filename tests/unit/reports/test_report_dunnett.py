"""Tests between seeds: scipy's Dunnett and Student's t are the oracles."""

import numpy as np
import pytest
from scipy import stats

from reports.results.dunnett import Family, detectable, family, t_interval


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
    """Dunnett 1955/1964, two-sided, 5 %, equal numbers."""
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
