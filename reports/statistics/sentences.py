"""Whether these very weights would differ on other sentences: paired tests of one column, from what was kept of each.

Counts per sentence are resampled (reports/statistics/resampling.py); for a metric without counts, shares per example
are paired (reports/statistics/paired.py). Holm's correction over a column's rows.
"""

from typing import Any

from numpy.typing import NDArray

from experiments.tasks.columns import Column
from reports.results.results import CountsOf
from reports.results.table import Row, Table, Test
from reports.statistics import resampling
from reports.statistics.dunnett import ALPHA
from reports.statistics.paired import SharesOf, paired_tests, shares_of_rows


def by_counts(table: Table, column: Column, counts_of: CountsOf) -> tuple[dict[str, Test], str]:
    """Tests of a column's rows against base by their counts, by row, and a note on rows without any."""
    base, rows = table.base_row, table.compared(column)
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


def by_shares(table: Table, column: Column, shares_of: SharesOf | None) -> tuple[dict[str, Test], str]:
    """The same for a metric that is the mean of a share per example, which the trainer kept."""
    base, rows = table.base_row, table.compared(column)
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
        """Counts of both rows over as many seeds as both have, and that number; None where they do not pair."""
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
