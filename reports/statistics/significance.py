"""Which changes from base are more than chance: between seeds or between sentences, never both under one mark.

"seeds" asks whether other trainings would differ: Dunnett's test of every row with base, over the seeds' values.
"sentences" asks whether these very weights would differ on other sentences: paired approximate randomisation of the
stored counts, Holm's correction over a column's rows; it knows nothing of the noise between trainings. "auto" takes
seeds where base and every compared row have three, and no test otherwise.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ablations.study.messages import number
from experiments.errors import UserError
from experiments.tasks.columns import Column
from reports.results import comparable
from reports.results.results import CountsOf
from reports.results.table import Row, Table, Test
from reports.statistics import dunnett, resampling, sentences
from reports.statistics.paired import SharesOf

MODES = ("auto", "seeds", "sentences", "none")
ALPHA = dunnett.ALPHA
ENOUGH_SEEDS = 3  # "auto" tests from this many on


def with_tests(table: Table, mode: str, counts_of: CountsOf, shares_of: SharesOf | None = None) -> Table:
    """The table with a Test on every measure that was tested. Raises UserError for another mode than MODES.

    In a pivoted table the rows of each column of it are tested by themselves.
    """
    if mode not in MODES:
        raise UserError(f"--significance {mode}: write one of {', '.join(MODES)}.")
    tested = [_tested(family, mode, counts_of, shares_of) for family in table.families]
    rows = {row.key: row for family in tested for row in family.rows}
    return replace(
        table,
        rows=tuple(rows[row.key] for row in table.rows),
        test=next((family.test for family in tested if family.test), ""),
        test_notes=tuple(dict.fromkeys(note for family in tested for note in family.test_notes)),
    )


def _tested(table: Table, mode: str, counts_of: CountsOf, shares_of: SharesOf | None) -> Table:
    chosen = _chosen(table) if mode == "auto" else mode
    if chosen == "none" or table.base_row is None:
        return replace(table, test_notes=tuple(_untested(table, mode)))
    tests: dict[tuple[str, str], Test] = {}
    notes: list[str] = []
    for column in table.columns:
        if chosen == "seeds":
            found, note = _seeds(table, column)
        elif column.counts is not None:
            found, note = sentences.by_counts(table, column, counts_of)
        else:
            found, note = sentences.by_shares(table, column, shares_of)
        tests |= {(key, column.key): test for key, test in found.items()}
        notes += [note] if note else []
    rows = tuple(_with(row, tests) for row in table.rows)
    made = (
        [_ABOUT[chosen].format(base=table.base)]
        if tests
        else [f"No change is tested{'' if notes else f': {_NEEDED}'}."]
    )
    return replace(table, rows=rows, test=chosen if tests else "", test_notes=(*made, *notes))


_NEEDED = "that needs complete rows, measured over the same tokens and sentences as base"

_ABOUT = {
    "seeds": (
        f"*: differs from {{base}} at the {ALPHA:.0%} level between seeds: Dunnett's test over the seeds' values, "
        "two-sided, all rows of a column at once, with equal variances assumed."
    ),
    "sentences": (
        f"*: differs from {{base}} at the {ALPHA:.0%} level between sentences (or single examples): paired approximate "
        f"randomisation ({resampling.TRIALS:,} trials), two-sided, Holm's correction over a column's rows. It concerns "
        "these weights on other sentences; other trainings may differ by more."
    ),
}


def _with(row: Row, tests: dict[tuple[str, str], Test]) -> Row:
    measures = {key: replace(m, test=tests.get((row.key, key))) for key, m in row.measures.items()}
    return replace(row, measures=measures)


def _chosen(table: Table) -> str:
    compared = [row for column in table.columns for row in _with_seeds(table, column)]
    if table.base_row is None or not compared:
        return "none"
    seeds = [len(row.outcomes) for row in (table.base_row, *compared)]
    return "seeds" if min(seeds) >= ENOUGH_SEEDS else "none"


def _with_seeds(table: Table, column: Column) -> list[Row]:
    """The compared rows that have seeds; an ensemble is one entry, which shows no spread."""
    return [row for row in table.compared(column) if not row.ensemble]


def _untested(table: Table, mode: str) -> Iterator[str]:
    if mode in ("seeds", "sentences"):
        yield "No change is tested: base is not in the table."
    if mode == "auto" and any(table.compared(column) for column in table.columns):
        yield (
            f"Not tested for significance (needs at least {ENOUGH_SEEDS} seeds per row): another training may change "
            "any of these numbers."
        )


def _seeds(table: Table, column: Column) -> tuple[dict[str, Test], str]:
    base, rows = table.base_row, _with_seeds(table, column)
    if base is None or not rows or base.ensemble:
        return {}, ""
    control = comparable.scale(base.measures[column.key].values, column)
    values = [comparable.scale(row.measures[column.key].values, column) for row in rows]
    family = dunnett.family(control, values)
    if family is None:
        several = max(map(len, (control, *values))) > 1
        reason = "its values do not vary between seeds" if several else "one seed per row shows no spread between seeds"
        return {}, f"{column.header}: not tested, {reason}."
    critical = family.critical()
    tests = {}
    for row, own in zip(rows, values, strict=True):
        difference, half = float(np.mean(own) - np.mean(control)), critical * family.error(len(own))
        p = family.p(difference, len(own))
        tests[row.key] = Test(p, difference - half, difference + half, p <= ALPHA, _paired(base, row, column))
    return tests, _power(family, column, len(rows))


def _paired(base: Row, row: Row, column: Column) -> tuple[float, float] | None:
    """The t interval of the seeds' own differences, uncorrected: seeds pair by number, with equal order of data."""
    ours, theirs = row.measures[column.key].values, base.measures[column.key].values
    if len(ours) != len(theirs) or len(ours) < 2:
        return None
    pairs = zip(comparable.scale(ours, column), comparable.scale(theirs, column), strict=True)
    _, low, high = dunnett.t_interval([a - b for a, b in pairs])
    return low, high


def _power(family: dunnett.Family, column: Column, rows: int) -> str:
    """The differences that the test can detect, so that a reader can judge a missing star."""
    n = min(family.rows)
    digits = max(comparable.change_digits(column), 2)
    marked, found = family.critical() * family.error(n), dunnett.detectable(family, n)
    unit = " in ln" if column.logarithmic else ""
    of = f"a row of {n} seeds is " if len(set(family.rows)) > 1 else ""
    spread = f"sd {family.variance**0.5:.{digits}f}{unit}"
    return (
        f"{column.header}: {number(rows, 'row')} compared, {spread} on "
        f"{number(family.freedom, 'degree')} of freedom; {of}marked from a difference of "
        f"{marked:.{digits}f}, 80 % power for a true difference of {found:.{digits}f}."
    )
