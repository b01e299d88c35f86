"""Which changes of branches are more than chance: they share steps with another row, so seeds are paired.

Dunnett's test takes the rows' trainings for independent. A branch has its first steps in common with its trunk, seed by
seed, and so with the other branches of it. The difference of the same seed's values is one number per seed, whatever
the two share, and the seeds are independent: the t test of these differences holds. Bonferroni's correction over the
tested rows of a column holds however they depend on each other.
"""

import numpy as np

from experiments.tasks.columns import Column
from reports.results import comparable
from reports.results.table import Row, Table, Test
from reports.statistics import dunnett

ABOUT = (
    "*, of branches: differs from {base} at the {alpha:.0%} level between seeds, by no less than these seeds can show "
    "(with {power:.0%} power): t test of the differences of the same seed, two-sided, Bonferroni's correction over the "
    "branches of a column, because they share steps. For the same reason nothing is bold."
)


def shares_steps(row: Row, base: Row) -> bool:
    """Whether two rows may share steps, so that their values are not independent."""
    return row.branch or base.branch


def paired(table: Table, column: Column) -> tuple[dict[str, Test], str]:
    """Tests of a column's branches against base, by row, and a note on what they can show."""
    base = table.base_row
    if base is None or base.ensemble:
        return {}, ""
    rows = [row for row in table.compared(column) if not row.ensemble and shares_steps(row, base)]
    tests, words, alike = {}, [], []
    for row in rows:
        differences = _differences(row, base, column)
        family = _family(differences, len(rows))
        if family is None:
            alike.append(row.key)
            continue
        n, mean = len(differences), float(np.mean(differences))
        half, least = family.critical() * family.error(n), dunnett.detectable(family, n)
        p = min(1.0, family.p(mean, n) * len(rows))
        _, low, high = dunnett.t_interval(differences)
        tests[row.key] = Test(p, mean - half, mean + half, abs(mean) >= least, (low, high))
        words.append(f"{least:.{max(comparable.change_digits(column), 2)}f} ({row.key})")
    notes = [f"{column.header}: branches are marked from a difference of {', '.join(words)}"] if words else []
    notes += [f"{column.header}: {', '.join(alike)} not tested, no spread of the seeds' differences"] if alike else []
    return tests, ". ".join(notes) + "." if notes else ""


def _differences(row: Row, base: Row, column: Column) -> list[float]:
    """Row minus base, of the seeds that both have."""
    values = []
    for one in (row, base):
        measured = one.measures[column.key].values  # complete, as all compared rows are
        seeds = [outcome.run.seed for outcome in one.outcomes]
        values.append(dict(zip(seeds, comparable.scale(measured, column), strict=True)))
    ours, theirs = values
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def _family(differences: list[float], rows: int) -> dunnett.Family | None:
    """The t test of the mean difference: as if two independent samples had half its variance each.

    None without spread.
    """
    n = len(differences)
    variance = float(np.var(differences, ddof=1)) if n > 1 else 0.0
    if variance <= (1e-12 * max(map(abs, differences), default=0.0)) ** 2:
        return None
    return dunnett.Family(n, (n,), variance / 2, n - 1, dunnett.ALPHA / rows)
