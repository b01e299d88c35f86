"""The power predicted before training equals that of simulated tables."""

import numpy as np
import pytest
from scipy import stats

from benchmarks import levels
from reports.results.dunnett import spread
from reports.results.power import POWER, smallest_difference


@pytest.mark.parametrize(("rows", "seeds"), [(1, 2), (3, 3), (19, 3), (8, 10)])
def test_the_smallest_difference_has_a_star_in_80_percent_of_20000_simulated_tables(rows, seeds):
    difference = smallest_difference(1.0, rows, seeds)
    chance = np.random.default_rng(rows * seeds)
    values = levels.simulate(chance, 20_000, seeds, np.ones(rows + 1), difference)
    assert POWER == 0.8 and levels.marked(values)["both"][:, 0].mean() == pytest.approx(POWER, abs=0.01)


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
