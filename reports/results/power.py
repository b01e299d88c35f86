"""Power of the tests between seeds: which true differences a number of seeds can detect.

The difference is between one row and base. All rows are assumed to have the same standard deviation. A difference gets
a star if both Dunnett's test and Dunnett's T3 have p < ALPHA (reports/results/significance.py).
"""

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from reports.results.dunnett import ALPHA, Family, solve

POWER = 0.8
_QUANTILES = (60, 60, 8)  # number of points for the variance of base, of the row, and of all other rows together


def table_of(sd: float, rows: int, seeds: int) -> Family:
    """Return the family of Dunnett's test for base and `rows` rows.

    Base and each row have `seeds` seeds and the standard deviation `sd`.
    """
    return Family(seeds, (seeds,) * rows, sd**2, (rows + 1) * (seeds - 1))


def smallest_difference(sd: float, rows: int, seeds: int) -> float | None:
    """Return the true difference from base that gets a star with probability POWER; None for one seed."""
    return detectable_by_both(table_of(sd, rows, seeds)) if seeds > 1 else None


@lru_cache(maxsize=256)
def detectable(of: Family, n: int) -> float:
    """Return the true difference that the test of a row of `n` values marks (p < alpha) with probability POWER."""
    from scipy.special import nctdtr

    limit = of.critical()

    def missed(shift: float) -> float:
        # The estimated difference divided by its standard error has a noncentral t distribution.
        above, below = (float(nctdtr(of.freedom, shift, t)) for t in (limit, -limit))
        found = 1.0 if math.isnan(above) else 1 - above + (0.0 if math.isnan(below) else below)  # NaN in the far tail
        return POWER - found

    return solve(missed, 0.0, 400.0) * of.error(n)


@lru_cache(maxsize=256)
def detectable_by_both(of: Family) -> float:
    """Return the true difference that gets a star with probability POWER, for the row with the fewest values.

    Given the estimated variances, the difference of the means is normal, and the larger limit of the two tests decides.
    The variances are independent χ² variables, and the function averages over equally probable points of their
    distributions. If base or the row has one value, only Dunnett's test is used.
    """
    from scipy.special import chdtri, ndtr

    base, row = of.control - 1, min(of.rows) - 1  # degrees of freedom
    if min(base, row) < 1:
        return detectable(of, row + 1)
    rest = of.freedom - base - row
    points = [(np.arange(count) + 0.5) / count for count in _QUANTILES]
    of_base, of_row, of_rest = (
        chdtri(freedom, tail) if freedom > 0 else np.zeros(1)
        for freedom, tail in zip((base, row, rest), points, strict=True)
    )
    of_base, of_row, of_rest = np.meshgrid(of_base, of_row, of_rest, indexing="ij")
    error = math.sqrt(1 / (row + 1) + 1 / (base + 1))
    pooled = np.sqrt((of_base + of_row + of_rest) / of.freedom) * error
    parts = of_base / base / (base + 1), of_row / row / (row + 1)
    freedom = (parts[0] + parts[1]) ** 2 / (parts[0] ** 2 / base + parts[1] ** 2 / row)
    separate = critical_of_t3(freedom, min(base, row), base + row, len(of.rows)) * np.sqrt(parts[0] + parts[1])
    limit = np.maximum(of.critical() * pooled, separate)

    def missed(difference: float) -> float:
        return POWER - float((ndtr((difference - limit) / error) + ndtr((-difference - limit) / error)).mean())

    return solve(missed, 0.0, 400.0) * math.sqrt(of.variance)


def critical_of_t3(freedom: NDArray[np.float64], least: int, most: int, rows: int) -> NDArray[np.float64]:
    """Return the critical values of T3 at ALPHA, interpolated on a grid from `least` to `most` degrees of freedom."""
    grid = np.geomspace(least, most, 24)
    values = [Family(2, (2,) * rows, 1.0, float(point), ALPHA, correlated=False).critical() for point in grid]
    return np.asarray(np.exp(np.interp(np.log(freedom), np.log(grid), np.log(values))))
