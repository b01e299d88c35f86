"""Dunnett's comparisons of many rows with one control, by numerical integration. Imports no torch.

Dunnett's test (1955) assumes equal variances; his T3 (1980) does not. For a single row they are Student's and Welch's
t tests. `benchmarks/levels.py` measures how often tables without any effect get a star from each of them, and from the
larger of the two p-values, which is what the tables use.

scipy.stats.dunnett gives the same p-values from random draws: four seconds for 19 rows, minutes for 99, and other last
digits with another seed. All rows share the control and the pooled variance, so that the joint distribution is one
integral over the control's mean and one over the variance (Dunnett 1955); both are smooth, and the trapezoid rule on
them is exact to about 1e-9. The tests hold scipy against it.
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
    """Rows compared with one control: how many values each has, and the spread that they are taken to share."""

    control: int  # values of the control
    rows: tuple[int, ...]  # values of each row
    variance: float  # pooled within rows and control
    freedom: float  # its degrees of freedom
    alpha: float = ALPHA  # level of the test
    correlated: bool = True  # the rows' differences, through the control; False: the studentized maximum modulus

    def error(self, n: int) -> float:
        """Standard error of the difference between the mean of `n` values and the control's."""
        return math.sqrt(self.variance * (1 / n + 1 / self.control))

    def p(self, difference: float, n: int) -> float:
        """Two-sided, corrected for all rows of the family."""
        return min(1.0, max(0.0, 1 - self._inside(abs(difference) / self.error(n))))

    def critical(self) -> float:
        """The t beyond which p is below alpha."""
        return _critical(replace(self, variance=1.0))  # it does not depend on the variance

    def _inside(self, t: float) -> float:
        """P(every row's |t| ≤ t) where no row differs."""
        spread, weight = _pooled_spread(self.freedom)
        if not self.correlated:
            return float(weight @ _between(-t * spread, t * spread) ** len(self.rows))
        z = np.linspace(-8.5, 8.5, _POINTS)
        density = np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
        joint = np.ones((len(spread), len(z)))
        for n, count in Counter(self.rows).items():
            share = n / (n + self.control)  # correlation of two such rows
            own, shift = math.sqrt(1 - share), math.sqrt(share) * z
            joint *= _between((-t * spread[:, None] + shift) / own, (t * spread[:, None] + shift) / own) ** count
        return float(weight @ joint @ density)


@lru_cache(maxsize=1000)
def _critical(family: Family) -> float:
    return solve(lambda t: 1 - family._inside(t) - family.alpha, 0.0, 200.0)


def family(control: Sequence[float], rows: Sequence[Sequence[float]]) -> Family | None:
    """The family; None without a spread: too few values, all equal, or of sizes too unlike for floating point."""
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
    """One of so many rows against the control, each with its own variance: Dunnett's T3 (JASA 75:796, 1980).

    The standard error is Welch's, the degrees of freedom are Satterthwaite's; as a Family: two samples of one size with
    half of the difference's variance each. None: a sample of one value, or neither has a spread.
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
    """For each of the others whether Welch's t test cannot tell it from the best: Holm's correction over all of them.

    Without a spread in either there is nothing to test, and equal means alone are not told apart.
    """
    p_values = {}
    for place, values in enumerate(others):
        difference, of = float(np.mean(values) - np.mean(best)), t3(best, values)
        p_values[str(place)] = of.p(difference, len(values)) if of else float(difference == 0)
    return [p > ALPHA for p in holm(p_values).values()]


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's step-down correction: the smallest p times the number of tests, the next times one less, never falling."""
    corrected: dict[str, float] = {}
    highest = 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p * (len(p_values) - rank)))
        corrected[key] = highest
    return {key: corrected[key] for key in p_values}


def t_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean of values and its two-sided 95 % interval by Student's t; infinite for a single value."""
    from scipy.special import stdtrit

    sample = np.asarray(values, dtype=float)
    mean = float(sample.mean())
    if len(sample) < 2:
        return mean, -math.inf, math.inf
    half = float(stdtrit(len(sample) - 1, 1 - ALPHA / 2)) * float(sample.std(ddof=1)) / math.sqrt(len(sample))
    return mean, mean - half, mean + half


def _pooled_spread(freedom: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points of s/σ and their probabilities, s² = χ²/ν: the trapezoid rule in ln s, whose density is smooth."""
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
    """Return the root of a falling function between low and high, to 1e-12."""
    from scipy.optimize import brentq

    return float(brentq(falling, low, high, xtol=1e-12))


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """The standard deviation of seeds, and its 95 % interval by the χ² distribution (normal values assumed).

    Raises ValueError for fewer than two values.
    """
    from scipy.special import chdtri

    n, sd = len(values), statistics.stdev(values)
    low, high = (sd * math.sqrt((n - 1) / float(chdtri(n - 1, tail))) for tail in (ALPHA / 2, 1 - ALPHA / 2))
    return sd, low, high
