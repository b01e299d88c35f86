"""Power before the seeds are trained: simulated tables are the oracle."""

import numpy as np
import pytest
from scipy import stats

from reports.results.dunnett import POWER, family, smallest_difference, spread, table_of


@pytest.mark.parametrize(("rows", "seeds"), [(1, 2), (3, 3), (19, 3), (8, 10)])
def test_the_smallest_difference_is_marked_in_80_percent_of_500_simulated_tables(rows, seeds):
    """Within 3 points, but for the simulation's own error (two standard errors)."""
    difference = smallest_difference(1.0, rows, seeds)
    rng, limit, found = np.random.default_rng(rows * seeds), table_of(1.0, rows, seeds).critical(), 0
    tables = 500
    for _ in range(tables):
        base, *others = rng.normal(50.0, 1.0, size=(rows + 1, seeds))
        others[0] += difference
        spread_of = family(base.tolist(), [row.tolist() for row in others])
        found += abs(others[0].mean() - base.mean()) / spread_of.error(seeds) > limit
    error = 2 * np.sqrt(POWER * (1 - POWER) / tables)
    assert POWER == 0.8 and found / tables == pytest.approx(POWER, abs=0.03 + error)


def test_more_seeds_show_less_and_one_shows_nothing():
    shown = [smallest_difference(1.0, 9, seeds) for seeds in (2, 3, 5, 10)]
    assert shown == sorted(shown, reverse=True)
    assert smallest_difference(1.0, 9, 1) is None


def test_the_spread_and_its_interval():
    values = np.random.default_rng(1).normal(size=5)
    sd, low, high = spread(values.tolist())
    assert sd == pytest.approx(values.std(ddof=1))
    for bound, tail in ((low, 0.975), (high, 0.025)):  # the definition: χ² = (n − 1) s² / σ²
        assert stats.chi2.cdf(4 * sd**2 / bound**2, 4) == pytest.approx(tail)
