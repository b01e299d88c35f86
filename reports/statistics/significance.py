"""Which changes from base are more than chance: between seeds or between sentences, never both under one mark.

"seeds" asks whether other trainings would differ: Dunnett's test of every row with base, over the seeds' values.
"sentences" asks whether these very weights would differ on other sentences: paired approximate randomisation of the
stored counts, Holm's correction over a column's rows; it knows nothing of the noise between trainings. "auto" takes
seeds where base and every compared row have three, and no test otherwise.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ablations.study.messages import number
from experiments.errors import UserError
from experiments.tasks.columns import Column
from reports.results import comparable as compare
from reports.results.results import CountsOf
from reports.results.table import Row, Table, Test
from reports.statistics import dunnett, resampling
from reports.statistics.paired import SharesOf, paired_tests, shares_of_rows

MODES = ("auto", "seeds", "sentences", "none")
ALPHA = dunnett.ALPHA
ENOUGH_SEEDS = 3  # from here "auto" tests


def with_tests(table: Table, mode: str, counts_of: CountsOf, shares_of: SharesOf | None = None) -> Table:
    """The table with a Test on every measure that was tested. Raises UserError for another mode than MODES."""
    if mode not in MODES:
        raise UserError(f"--significance {mode}: write one of {', '.join(MODES)}.")
    chosen = _chosen(table) if mode == "auto" else mode
    if chosen == "none" or table.base_row is None:
        return replace(table, test_notes=tuple(_untested(table, mode)))
    tests: dict[tuple[str, str], Test] = {}
    notes: list[str] = []
    for column in table.columns:
        if chosen == "sentences" and column.counts is None:
            found, note = _examples(table, column, shares_of)
        else:
            found, note = (_seeds if chosen == "seeds" else _sentences)(table, column, counts_of)
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
        "two-sided, all rows of a column at once, which are taken to spread alike."
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
    compared = [row for column in table.columns for row in _compared(table, column)]
    if table.base_row is None or not compared:
        return "none"
    seeds = [len(row.outcomes) for row in (table.base_row, *compared)]
    return "seeds" if min(seeds) >= ENOUGH_SEEDS else "none"


def _untested(table: Table, mode: str) -> Iterator[str]:
    if mode in ("seeds", "sentences"):
        yield "No change is tested: base is not in the table."
    if mode == "auto" and any(_compared(table, column) for column in table.columns):
        yield (
            f"Not tested for significance (needs at least {ENOUGH_SEEDS} seeds per row): another training may change "
            "any of these numbers."
        )


def _compared(table: Table, column: Column) -> list[Row]:
    """Rows whose change from base is known: complete, over the same tokens and sentences."""
    return [row for row in table.rows if row.measures[column.key].change is not None]


def _seeds(table: Table, column: Column, _: CountsOf) -> tuple[dict[str, Test], str]:
    base, rows = table.base_row, _compared(table, column)
    if base is None or not rows:
        return {}, ""
    control = compare.scale(base.measures[column.key].values, column)
    values = [compare.scale(row.measures[column.key].values, column) for row in rows]
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
    pairs = zip(compare.scale(ours, column), compare.scale(theirs, column), strict=True)
    _, low, high = dunnett.t_interval([a - b for a, b in pairs])
    return low, high


def _power(family: dunnett.Family, column: Column, rows: int) -> str:
    """What the test can see at all: a reader of "no star" must know it."""
    n = min(family.rows)
    digits = max(compare.change_digits(column), 2)
    marked, found = family.critical() * family.error(n), dunnett.detectable(family, n)
    unit = " in ln" if column.logarithmic else ""
    of = f"a row of {n} seeds is " if len(set(family.rows)) > 1 else ""
    spread = f"sd {family.variance**0.5:.{digits}f}{unit}"
    return (
        f"{column.header}: {number(rows, 'row')} compared, {spread} on "
        f"{number(family.freedom, 'degree')} of freedom; {of}marked from a difference of "
        f"{marked:.{digits}f}, 80 % power for a true difference of {found:.{digits}f}."
    )


def _sentences(table: Table, column: Column, counts_of: CountsOf) -> tuple[dict[str, Test], str]:
    base, rows = table.base_row, _compared(table, column)
    if base is None or not rows or column.counts is None:
        return {}, ""
    reader, value = _Pooled(column, counts_of), column.counts.of
    pairs = [(row, reader.pair(base, row)) for row in rows]
    by_size: dict[int, list[tuple[Row, NDArray[Any], NDArray[Any]]]] = {}
    for row, pair in pairs:
        if pair is not None:  # rows paired over equally many seeds of base share its counts
            by_size.setdefault(pair[2], []).append((row, pair[0], pair[1]))
    raw: dict[str, resampling.Resampled] = {}
    bounds: dict[str, resampling.Resampled] = {}
    for some in by_size.values():
        keys, control, counts = [row.key for row, *_ in some], some[0][1], [c for *_, c in some]
        raw |= zip(keys, resampling.randomise(control, counts, value), strict=True)
        bounds |= zip(keys, resampling.bootstrap(control, counts, value), strict=True)
    corrected = holm({key: found.p for key, found in raw.items()})
    tests = {k: Test(p, bounds[k].low, bounds[k].high, p <= ALPHA, None) for k, p in corrected.items()}
    lacking = [row.key for row, pair in pairs if pair is None]
    return tests, f"{column.header}: no counts per sentence are kept of {', '.join(lacking)}." if lacking else ""


def _examples(table: Table, column: Column, shares_of: SharesOf | None) -> tuple[dict[str, Test], str]:
    """The same between single examples, for a metric that is the mean of shares which the trainer kept."""
    base, rows = table.base_row, _compared(table, column)
    if base is None or not rows:
        return {}, ""
    if shares_of is None or column.logarithmic:
        return {}, f"{column.header}: not tested between sentences, since it is no mean of values per sentence."
    pairs = {row.key: shares_of_rows(base, row, column.key, column.set, column.metric, shares_of) for row in rows}
    there = {key: pair for key, pair in pairs.items() if pair is not None}
    if not there:
        return {}, f"{column.header}: not tested, since no shares per example that pair with base's are kept."
    found = dict(zip(there, paired_tests(list(there.values())), strict=True))
    corrected = holm({key: result.p for key, result in found.items()})
    tests = {k: Test(p, found[k].low, found[k].high, p <= ALPHA, None) for k, p in corrected.items()}
    lacking = [key for key in pairs if key not in there]
    return (
        tests,
        f"{column.header}: no shares per example that pair are kept of {', '.join(lacking)}." if lacking else "",
    )


class _Pooled:
    """Counts of a row per sentence, summed over its first seeds, as many as both rows have."""

    def __init__(self, column: Column, counts_of: CountsOf) -> None:
        self._column, self._counts_of = column, counts_of
        self._known: dict[tuple[str, int], NDArray[Any] | None] = {}

    def pair(self, base: Row, row: Row) -> tuple[NDArray[Any], NDArray[Any], int] | None:
        seeds = min(len(base.outcomes), len(row.outcomes))
        ours, theirs = self._sum(base, seeds), self._sum(row, seeds)
        if ours is None or theirs is None or len(ours) != len(theirs):
            return None
        return ours, theirs, seeds

    def _sum(self, row: Row, seeds: int) -> NDArray[Any] | None:
        if (row.key, seeds) not in self._known:
            found = [self._counts_of(outcome, self._column) for outcome in row.outcomes[:seeds]]
            usable = [counts for counts in found if counts is not None]
            alike = len(usable) == len(found) and len({counts.shape for counts in usable}) == 1
            self._known[row.key, seeds] = resampling.pooled(usable) if alike else None
        return self._known[row.key, seeds]


def holm(p_values: dict[str, float]) -> dict[str, float]:
    """Holm's step-down correction: the smallest p times the number of tests, the next times one less, never falling."""
    corrected: dict[str, float] = {}
    highest = 0.0
    for rank, (key, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        highest = max(highest, min(1.0, p * (len(p_values) - rank)))
        corrected[key] = highest
    return {key: corrected[key] for key in p_values}


def agreement(table: Table) -> Iterator[str]:
    """How far the order of our changes is the paper's: Kendall's τ-b per column, from four rows on."""
    parts = []
    for column in table.columns:
        measures: Iterable[Any] = (row.measures[column.key] for row in table.rows)
        pairs = [
            (m.change, m.reported_change) for m in measures if m.change is not None and m.reported_change is not None
        ]
        tau = kendall(pairs) if len(pairs) > 3 else None
        if tau is not None:
            parts.append(f"{column.header} {tau:.2f} over {number(len(pairs), 'row')}".replace("-", "−"))
    if parts:
        yield f"Rank agreement of the changes with the paper's (Kendall's τ): {', '.join(parts)}."


def kendall(pairs: Sequence[tuple[float, float]]) -> float | None:
    """τ-b, ties counted out; None where one side is all ties."""
    ours, theirs = np.array(pairs).T
    one, other = np.sign(ours[:, None] - ours), np.sign(theirs[:, None] - theirs)
    size = float(np.sqrt((one**2).sum() * (other**2).sum()))
    return float((one * other).sum()) / size if size else None
