"""Dunnett's comparisons of many rows with one control, by numerical integration. This module does not import torch.

Dunnett's test (1955) assumes equal variances; Dunnett's T3 (1980) does not. For a single row, Dunnett's test equals
Student's t test, and T3 equals Welch's. Tables use the larger of the two p-values. `benchmarks/levels.py` measures how
often tables without any effect get a star from each test and from the larger p-value.

scipy.stats.dunnett computes the p-values from random draws. It takes four seconds for 19 rows and minutes for 99 rows,
and the last digits depend on the seed. All rows share the control and the pooled variance, so the joint distribution is
an integral over the control's mean and the variance (Dunnett 1955). The integrand is smooth in both variables, so the
trapezoid rule has an error of about 1e-9. The unit tests compare the results with scipy.
"""

import math
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05
_POINTS = 161


@dataclass(frozen=True)
class Family:
    """Rows that are compared with one control: the sample sizes and the common variance."""

    control: int  # number of values of the control
    rows: tuple[int, ...]  # number of values of each row
    variance: float  # variance pooled within rows and control
    freedom: float  # degrees of freedom of the variance
    alpha: float = ALPHA  # level of the test
    # Whether the common control makes the rows' differences correlated. If False, the distribution is the studentized
    # maximum modulus (for T3).
    correlated: bool = True

    def error(self, n: int) -> float:
        """Return the standard error of the difference between the mean of `n` values and the mean of the control."""
        return math.sqrt(self.variance * (1 / n + 1 / self.control))

    def p(self, difference: float, n: int) -> float:
        """Return the two-sided p-value, corrected for all rows of the family."""
        return min(1.0, max(0.0, 1 - self._inside(abs(difference) / self.error(n))))

    def critical(self) -> float:
        """Return the t value beyond which p is below alpha."""
        return _critical(replace(self, variance=1.0))  # the critical value does not depend on the variance

    def _inside(self, t: float) -> float:
        """Return the probability that |t| of every row is at most `t` if no row differs from the control."""
        spread, weight = _pooled_spread(self.freedom)
        if not self.correlated:
            return float(weight @ _between(-t * spread, t * spread) ** len(self.rows))
        z = np.linspace(-8.5, 8.5, _POINTS)
        density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
        joint = np.ones((len(spread), len(z)))
        for n, count in Counter(self.rows).items():
            share = n / (n + self.control)  # correlation of two rows of this size
            own, shift = math.sqrt(1 - share), math.sqrt(share) * z
            joint *= _between((-t * spread[:, None] + shift) / own, (t * spread[:, None] + shift) / own) ** count
        return float(weight @ joint @ density)


@lru_cache(maxsize=1000)
def _critical(family: Family) -> float:
    return solve(lambda t: 1 - family._inside(t) - family.alpha, 0.0, 200.0)


def family(control: Sequence[float], rows: Sequence[Sequence[float]]) -> Family | None:
    """Return the family of these samples; None if their variance cannot be estimated.

    The variance cannot be estimated if there are too few values, if all values of each sample are equal, or if the
    values are so large that floating point loses their spread.
    """
    samples = [np.asarray(values, dtype=float) for values in (control, *rows)]
    freedom = sum(len(values) - 1 for values in samples)
    if not rows or freedom < 1 or min(map(len, samples)) < 1:
        return None
    with np.errstate(over="ignore", invalid="ignore"):
        variance = sum(float(((values - values.mean()) ** 2).sum()) for values in samples) / freedom
    scale = max(float(abs(values).max()) for values in samples)
    if not 1e-12 * scale < math.sqrt(variance) < math.inf:
        return None
    return Family(len(control), tuple(len(values) for values in rows), variance, freedom)


def t3(control: Sequence[float], row: Sequence[float], rows: int = 1) -> Family | None:
    """Return the family for Dunnett's T3 (JASA 75:796, 1980): one of `rows` rows against the control.

    The variances of the two samples may differ. Therefore, the standard error is Welch's, and the degrees of freedom
    are Satterthwaite's. The family describes the control and each row as samples of the same size n. Its variance is
    chosen so that a difference of two means has Welch's standard error. Return None if a sample has a single value, or
    if no sample has a spread.
    """
    n, samples = len(row), [np.asarray(values, dtype=float) for values in (control, row)]
    if min(map(len, samples)) < 2:
        return None
    parts = [float(values.var(ddof=1)) / len(values) for values in samples]
    if math.sqrt(sum(parts)) <= 1e-12 * max(float(abs(values).max()) for values in samples):
        return None
    freedom = sum(parts) ** 2 / sum(part**2 / (len(of) - 1) for part, of in zip(parts, samples, strict=True))
    return Family(n, (n,) * rows, sum(parts) * n / 2, freedom, correlated=False)


def undistinguished(best: Sequence[float], others: Sequence[Sequence[float]]) -> list[bool]:
    """Return for each of `others` whether Welch's t test with Holm's correction finds no difference from `best`.

    If a pair cannot be tested (a single value, or no spread), only equal means count as no difference.
    """
    p_values = {}
    for place, values in enumerate(others):
        difference, of = float(np.mean(values) - np.mean(best)), t3(best, values)
        p_values[str(place)] = of.p(difference, len(values)) if of else float(difference == 0)
    return [p > ALPHA for p in holm(p_values).values()]


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p-values corrected by Holm's step-down method.

    The smallest p is multiplied by the number of tests, the next p by one less, and so on. In this order, a corrected p
    is never smaller than the one before.
    """
    corrected: dict[str, float] = {}
    highest = 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p * (len(p_values) - rank)))
        corrected[key] = highest
    return {key: corrected[key] for key in p_values}


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean and its two-sided 95 % interval by Student's t. A single value gives an infinite interval."""
    from scipy.special import stdtrit

    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, -math.inf, math.inf
    half = float(stdtrit(len(sample) - 1, 1 - ALPHA / 2)) * float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return mean, mean - half, mean + half


def _pooled_spread(freedom: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return points of s/σ and their probabilities, where s²/σ² = χ²/ν.

    The points are equidistant in ln s for the trapezoid rule, because the density of ln s is smooth.
    """
    from scipy.special import gammaln

    width = min(12.0 / math.sqrt(freedom), 7.0)
    log_s = np.linspace(-1.6 * width - 6 / freedom, width, 2 * _POINTS)
    half = freedom / 2
    log_density = math.log(2) + half * math.log(half) - gammaln(half) + freedom * log_s - half * np.exp(2 * log_s)
    return np.exp(log_s), np.exp(log_density) * (log_s[1] - log_s[0])


def _between(low: NDArray[np.float64], high: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.special import ndtr

    found: NDArray[np.float64] = ndtr(high) - ndtr(low)
    return np.clip(found, 0.0, 1.0)


def solve(falling: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of a decreasing function between low and high, to 1e-12."""
    from scipy.optimize import brentq

    return float(brentq(falling, low, high, xtol=1e-12))


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the standard deviation of seeds, and its 95 % interval by the χ² distribution for normal values.

    Raises ValueError for fewer than two values.
    """
    from scipy.special import chdtri

    n, sd = len(values), statistics.stdev(values)
    low, high = (sd * math.sqrt((n - 1) / float(chdtri(n - 1, tail))) for tail in (ALPHA / 2, 1 - ALPHA / 2))
    return sd, low, high
