"""Rate of false stars and power of tests between seeds, in simulated tables with equal and unequal variances.

    python -m benchmarks.levels [--tables N] [--seed N] [--json]

Each table has a base and some rows, all with the same number of seeds and with normal values. If no row has an effect,
every star is false; no more than 5 % of tables should have one. The interval of a claim excludes the true difference
exactly if the star is false, so the same share of tables has a false verdict. If one row has an effect, the power is
the share of tables in which that row has a star. The tests are:

    dunnett     Dunnett's test, which assumes equal variances
    t3          Dunnett's T3, which does not assume equal variances
    welch-holm  Welch's t test with Holm's correction
    bartlett    T3 if the largest variance is over 4 times the smallest and Bartlett's p < .05, else Dunnett's test
    ratio       T3 if the largest variance is over 10 times the smallest, else Dunnett's test
    both        the larger p of Dunnett's test and T3, as in the program's tables
"""

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.machine import machine
from reports.results.dunnett import ALPHA
from reports.results.power import critical_of_t3, table_of

Array = NDArray[np.float64]
Marks = Mapping[str, NDArray[np.bool_]]  # test → whether each row of each table has a star, (tables, rows)

SEEDS, ROWS, RATIOS = (3, 5, 10), (1, 2, 4, 7, 19), (3, 6)
# Effects of one row with 3 seeds, in standard deviations of a seed. With n seeds they are multiplied by √(3 / n).
EFFECTS = (2.0, 3.0, 4.0, 6.0)


def cases(rows: int) -> Iterator[tuple[str, Array]]:
    """Yield named cases of the standard deviations of base and of each row.

    They are all equal, or larger for one row, for base, or for half the rows.
    """
    equal = np.ones(rows + 1)
    yield "equal", equal
    for ratio in RATIOS:
        for name, larger in (("one row", [1]), ("base", [0]), ("half the rows", range(1, 1 + (rows + 1) // 2))):
            if name != "half the rows" or rows > 1:
                sds = equal.copy()
                sds[list(larger)] = ratio
                yield f"{name} × {ratio}", sds


def simulate(chance: np.random.Generator, tables: int, seeds: int, sds: Array, effect: float = 0.0) -> Array:
    """Return simulated values, (tables, base and rows, seeds). `effect` is the true difference of the first row."""
    values: Array = chance.normal(size=(tables, len(sds), seeds)) * sds[:, None]
    values[:, 1] += effect
    return values


def marked(values: Array) -> Marks:
    """Return which rows have a star, for each test."""
    from scipy.special import stdtr

    seeds, rows = values.shape[2], values.shape[1] - 1
    variances, means = values.var(axis=2, ddof=1), values.mean(axis=2)
    differences = abs(means[:, 1:] - means[:, :1])
    of_base, of_rows = variances[:, :1], variances[:, 1:]
    pooled = np.sqrt(2 * variances.mean(axis=1, keepdims=True) / seeds)
    dunnett = differences > table_of(1.0, rows, seeds).critical() * pooled
    t = differences / np.sqrt((of_base + of_rows) / seeds)
    freedom = (seeds - 1) * (of_base + of_rows) ** 2 / (of_base**2 + of_rows**2)
    t3 = t > critical_of_t3(freedom, seeds - 1, 2 * (seeds - 1), rows)
    p = 2 * stdtr(freedom, -t)
    order = np.argsort(p, axis=1)
    steps = np.take_along_axis(p, order, axis=1) * np.arange(rows, 0, -1) < ALPHA
    holm = np.zeros_like(steps)
    np.put_along_axis(holm, order, np.logical_and.accumulate(steps, axis=1), axis=1)
    ratio = variances.max(axis=1, keepdims=True) / variances.min(axis=1, keepdims=True)
    unequal = (ratio > 4) & (_bartlett(variances, seeds) < ALPHA)
    return {
        "dunnett": dunnett,
        "t3": t3,
        "welch-holm": holm,
        "bartlett": np.where(unequal, t3, dunnett),
        "ratio": np.where(ratio > 10, t3, dunnett),
        "both": dunnett & t3,
    }


def _bartlett(variances: Array, seeds: int) -> Array:
    """Return the p-value of Bartlett's test of equal variances for each table."""
    from scipy.special import chdtrc

    samples, freedom = variances.shape[1], seeds - 1
    statistic = samples * freedom * np.log(variances.mean(axis=1)) - freedom * np.log(variances).sum(axis=1)
    statistic /= 1 + (samples / freedom - 1 / (samples * freedom)) / (3 * (samples - 1))
    p: Array = chdtrc(samples - 1, statistic)[:, None]
    return p


def measure(tables: int, seed: int) -> dict[str, Any]:
    """Return the percentages of tables with a false star, and of tables in which a true effect has a star."""
    chance = np.random.default_rng(seed)
    false, power = [], []
    for seeds in SEEDS:
        for rows in ROWS:
            for name, sds in cases(rows):
                found = marked(simulate(chance, tables, seeds, sds))
                shares = {test: round(100 * float(of.any(axis=1).mean()), 2) for test, of in found.items()}
                false.append({"seeds": seeds, "rows": rows, "variances": name, **shares})
            for effect in EFFECTS:
                size = effect * (3 / seeds) ** 0.5
                found = marked(simulate(chance, tables, seeds, np.ones(rows + 1), size))
                shares = {test: round(100 * float(of[:, 0].mean()), 1) for test, of in found.items()}
                power.append({"seeds": seeds, "rows": rows, "effect_sd": round(size, 2), **shares})
    return {"tables": tables, "seed": seed, "false_stars": false, "power": power, **machine()}


def main() -> None:
    """Simulate tables and print the results as lines or as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", type=int, default=20_000, help="number of simulated tables per case")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.tables < 1:
        parser.error("--tables must be at least 1: the shares of no tables are no numbers")
    found = measure(asked.tables, asked.seed)
    if asked.json:
        print(json.dumps(found, indent=1, ensure_ascii=False))
        return
    for title, key in (("Tables with a false star, per cent", "false_stars"), ("Power, per cent", "power")):
        print(title)
        for line in found[key]:
            print("  " + "  ".join(f"{name} {value}" for name, value in line.items()))


if __name__ == "__main__":
    main()
