"""What so many seeds can show: the power of the report's own test between seeds, before any of them is trained.

A table of `rows` rows and a base with `seeds` seeds each is tested by Dunnett's test with the spread pooled over all of
them (dunnett.py). Its power for one row depends on the true difference over the spread alone.
"""

import math
from collections.abc import Sequence

from reports.statistics.dunnett import ALPHA, Family, detectable

MOST_SEEDS = 1000


def table_of(sd: float, rows: int, seeds: int) -> Family:
    """The test of a table with so many seeds a row, where single seeds spread by `sd`."""
    return Family(seeds, (seeds,) * rows, sd**2, (rows + 1) * (seeds - 1))


def smallest_difference(sd: float, rows: int, seeds: int) -> float | None:
    """The true difference from base that is marked with probability POWER; None: one seed shows no spread."""
    return detectable(table_of(sd, rows, seeds), seeds) if seeds > 1 else None


def seeds_for(difference: float, sd: float, rows: int) -> int | None:
    """The fewest seeds a row that show this true difference; None: more than MOST_SEEDS."""
    # With the spread known exactly, seeds go with the square of sd over difference; estimating it takes a few more.
    known = smallest_difference(sd, rows, MOST_SEEDS) or math.inf
    first = max(2, math.floor(MOST_SEEDS * (known / difference) ** 2))
    for seeds in range(first, MOST_SEEDS + 1):
        if (smallest_difference(sd, rows, seeds) or math.inf) <= difference:
            return seeds
    return None


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The standard deviation of seeds, and its 95 % interval by the χ² distribution (normal values assumed).

    Raises ValueError for fewer than two values.
    """
    from scipy.special import chdtri

    n = len(values)
    if n < 2:
        raise ValueError("a spread needs two values")
    mean = math.fsum(values) / n
    sd = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1))
    low, high = (sd * math.sqrt((n - 1) / float(chdtri(n - 1, tail))) for tail in (ALPHA / 2, 1 - ALPHA / 2))
    return sd, low, high
