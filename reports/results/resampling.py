"""Tests between two systems on the same sentences or examples, for all rows of a table at once.

Approximate randomisation (Riezler and Maxwell 2005) swaps the two systems' translations of random sentences, and
compares the observed difference with the differences after such swaps. If the two systems were equally good, swaps
would not change the distribution of the difference. The paired bootstrap (Koehn 2004) resamples the same sentences for
both systems.

Random draws and p-values equal those of sacrebleu's `PairedTest` with its default seed, except for ties. If all
translations are equal, p is 1 here, and p is the smallest possible value in sacrebleu.

There are two kinds of metrics. A metric may be a function `value` of summed counts per sentence
(experiments/tasks/columns.py). Or it may be the mean of one value per example; this value is called a share.

Shapes: N sentences, T trials, R rows, C counts per sentence (10 for BLEU).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.store.layout import Store
from experiments.tasks.columns import EXAMPLE_FILE, Column
from reports.results.dunnett import holm
from reports.results.evaluation_readers import CountsOf, folder_of
from reports.results.run_outcomes import Outcome
from reports.results.table import Row, Table, Test

Counts = NDArray[Any]  # N × C, integers or real numbers
Value = Callable[[NDArray[Any]], NDArray[Any]]  # sums (… × C) → values (…)
SEED = 12345  # sacrebleu's default
TEST = "approximate randomisation, Holm"
TRIALS, RESAMPLES = 10_000, 1_000  # sacrebleu's defaults
EXACT = 2**24  # sums of integers below this limit are exact in 32-bit floats, in any order of addition
_TRIALS_AT_ONCE, _ROWS_AT_ONCE = 500, 64
_TIE = 1e-9  # tolerance within which two differences count as equal, in the metric's unit


@dataclass(frozen=True)
class Resampled:
    """The result of a test of one row against base."""

    difference: float  # row minus base
    p: float
    low: float = float("nan")  # 95 % percentile interval of the difference (bootstrap only)
    high: float = float("nan")


def randomise(base: Counts, rows: Sequence[Counts], value: Value, trials: int = TRIALS) -> list[Resampled]:
    """Test each row against base by two-sided approximate randomisation, with the same swaps for all rows."""
    swaps = np.random.default_rng(SEED).integers(2, size=(trials, len(base)), dtype=bool).astype(np.float32)
    found: list[Resampled] = []
    for block in _blocks(rows):
        both, observed = _sums(base, block, value)
        extreme = np.zeros(len(block), dtype=np.int64)
        dtype = _precision(base, *block)
        moves = np.concatenate([(base - row.astype(np.float64)).astype(dtype) for row in block], axis=1)  # N × R·C
        for start in range(0, trials, _TRIALS_AT_ONCE):
            some = swaps[start : start + _TRIALS_AT_ONCE]
            # Sums of the rows and of base after the swaps (T × R × C).
            one = both[1] + (some @ moves).reshape(len(some), *both[1].shape)
            other = both[0] + both[1] - one
            sizes = abs(value(one) - value(other))
            extreme += (sizes >= abs(observed) - _TIE).sum(axis=0)
        for difference, count in zip(observed.tolist(), extreme.tolist(), strict=True):
            found.append(Resampled(difference, (count + 1) / (trials + 1)))
    return found


def bootstrap(base: Counts, rows: Sequence[Counts], value: Value, resamples: int = RESAMPLES) -> list[Resampled]:
    """Test each row against base by the paired bootstrap: sacrebleu's p-value, and the percentile interval."""
    drawn = np.random.default_rng(SEED).choice(len(base), size=(resamples, len(base)), replace=True)
    times = np.stack([np.bincount(line, minlength=len(base)) for line in drawn])
    reference = value(times.astype(_precision(base)) @ base.astype(_precision(base)))
    found: list[Resampled] = []
    for block in _blocks(rows):
        _, observed = _sums(base, block, value)
        beside = np.concatenate([row.astype(_precision(base, row)) for row in block], axis=1)
        scores = value((times.astype(beside.dtype) @ beside).reshape(resamples, len(block), base.shape[1]))
        differences = scores - reference[:, None]
        sizes = abs(differences)
        extreme = (sizes - sizes.mean(axis=0) > abs(observed) - _TIE).sum(axis=0)
        low, high = np.percentile(differences, (2.5, 97.5), axis=0)
        lines = zip(observed.tolist(), extreme.tolist(), low.tolist(), high.tolist(), strict=True)
        for difference, count, lower, upper in lines:
            p = (count + 1) / (resamples + 1) if abs(difference) > _TIE else 1.0
            found.append(Resampled(difference, p, lower, upper))
    return found


def _blocks(rows: Sequence[Counts]) -> Iterator[Sequence[Counts]]:
    return (rows[at : at + _ROWS_AT_ONCE] for at in range(0, len(rows), _ROWS_AT_ONCE))


def pooled(counts: Sequence[Counts]) -> Counts:
    """Return the counts of several seeds, added sentence by sentence."""
    added: Counts = np.stack(counts).sum(axis=0, dtype=np.int32 if _whole(counts) else np.float64)
    return added


def _whole(counts: Sequence[Counts]) -> bool:
    return all(np.issubdtype(c.dtype, np.integer) for c in counts)


def _precision(*counts: Counts) -> type[np.floating]:
    """Return float32 if all possible sums are exact in float32, which multiplies twice as fast; else float64."""
    largest = max(float(abs(c).sum(axis=0).max(initial=0)) for c in counts) if _whole(counts) else EXACT
    return np.float32 if largest * 2 < EXACT else np.float64


def _sums(base: Counts, rows: Sequence[Counts], value: Value) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums of base and of each row (2 × R × C), and the differences of the metric, row minus base (R)."""
    of_base = np.repeat(base.sum(axis=0, dtype=np.float64)[None], len(rows), axis=0)
    of_rows = np.stack([row.sum(axis=0, dtype=np.float64) for row in rows])
    return np.stack([of_base, of_rows]), value(of_rows) - value(of_base)


# A trainer stores the shares with its examples (`context.examples`), under the metric's name.


SharesOf = Callable[[Outcome, str, str], NDArray[Any] | None]  # (outcome, set, metric) → one share per example
_AT_ONCE = 500


def shares_in(store: Store) -> SharesOf:
    """Return a function that reads the shares per example of an evaluation.

    The function returns None if there are no shares of the metric, or if their file is damaged.
    """

    def read(outcome: Outcome, set_: str, metric: str) -> NDArray[Any] | None:
        folder = folder_of(store, outcome, set_)
        if folder is None:
            return None
        try:
            text = (folder / EXAMPLE_FILE).read_text(encoding="utf-8")
            return np.array([json.loads(line)[metric] for line in text.split("\n") if line], dtype=np.float64)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    return read


def shares_of_rows(base: Row, row: Row, key: str, set_: str, metric: str, shares_of: SharesOf) -> Any:
    """Return the shares of base and of the row in the metric's unit, averaged over the first n seeds of each.

    n is the smaller of the two numbers of seeds. The metric must be the mean of the shares times a factor (for example
    100), and both rows must have the same factor. Return None if one of these conditions is not met, if all shares are
    zero, or if the examples do not form pairs.
    """
    seeds = min(len(base.outcomes), len(row.outcomes))
    found: list[NDArray[Any]] = []
    factors = []
    for one in (base, row):
        kept = [shares_of(outcome, set_, metric) for outcome in one.outcomes[:seeds]]
        usable = [shares for shares in kept if shares is not None and np.isfinite(shares).all()]
        if len(usable) < seeds or len({len(shares) for shares in usable}) != 1:
            return None
        mean, value = float(np.mean(usable)), float(np.mean(one.measures[key].values[:seeds]))
        factors.append(value / mean if mean else 0.0)
        found.append(np.mean(usable, axis=0))
    known = [factor for factor in factors if factor]
    if len(found[0]) != len(found[1]) or not known or not np.allclose(known, known[0], rtol=1e-6):
        return None
    return found[0] * known[0], found[1] * known[0]


def paired_test(differences: NDArray[Any]) -> Resampled:
    """Test the mean of the examples' differences, row minus base. Return its two-sided p and its 95 % interval."""
    observed, n = float(differences.mean()), len(differences)
    chance, extreme = np.random.default_rng(SEED), 0
    for _ in range(TRIALS // _AT_ONCE):
        signs = chance.integers(2, size=(_AT_ONCE, n)) * 2 - 1
        extreme += int((abs(signs @ differences) / n >= abs(observed) - 1e-12).sum())
    means = [differences[chance.integers(n, size=(_AT_ONCE, n))].mean(axis=1) for _ in range(RESAMPLES // _AT_ONCE)]
    low, high = np.percentile(np.concatenate(means), (2.5, 97.5))
    return Resampled(observed, (extreme + 1) / (TRIALS + 1), float(low), float(high))


def by_counts(table: Table, column: Column, counts_of: CountsOf) -> tuple[dict[str, Test], str]:
    """Test a column's rows against base by their counts. Return the tests by row, and a note on rows without counts."""
    base, rows = table.base_row, table.compared(column)
    if base is None or not rows or column.counts is None:
        return {}, ""
    reader, value = _Pooled(column, counts_of), column.counts.of
    pairs = [(row, reader.pair(base, row)) for row in rows]
    by_size: dict[int, list[tuple[Row, NDArray[Any], NDArray[Any]]]] = {}
    for row, pair in pairs:
        if pair is not None:  # rows that are paired over the same number of seeds share the counts of base
            by_size.setdefault(pair[2], []).append((row, pair[0], pair[1]))
    raw: dict[str, Resampled] = {}
    bounds: dict[str, Resampled] = {}
    for some in by_size.values():
        keys, control, counts = [row.key for row, *_ in some], some[0][1], [c for *_, c in some]
        raw |= zip(keys, randomise(control, counts, value), strict=True)
        bounds |= zip(keys, bootstrap(control, counts, value), strict=True)
    lacking = ", ".join(row.key for row, pair in pairs if pair is None)
    return _tests(raw, bounds), (
        f"{column.header}: no test for {lacking}, because no counts per sentence were kept."
    ) if lacking else ""


def _tests(raw: dict[str, Resampled], bounds: dict[str, Resampled]) -> dict[str, Test]:
    corrected = holm({key: found.p for key, found in raw.items()})
    return {key: Test(p, bounds[key].low, bounds[key].high, None, TEST) for key, p in corrected.items()}


def by_shares(table: Table, column: Column, shares_of: SharesOf | None) -> tuple[dict[str, Test], str]:
    """Test a column's rows against base by their shares per example. Return the tests by row, and a note."""
    base, rows = table.base_row, table.compared(column)
    if base is None or not rows:
        return {}, ""
    if shares_of is None or column.logarithmic:
        return {}, f"{column.header}: no test between sentences, because it is not a mean of values per sentence."
    pairs = {row.key: shares_of_rows(base, row, column.key, column.set, column.metric, shares_of) for row in rows}
    there = {key: pair for key, pair in pairs.items() if pair is not None}
    if not there:
        return {}, (
            f"{column.header}: no test between examples, because no values per example that pair with base's were kept."
        )
    found = {key: paired_test(row - base) for key, (base, row) in there.items()}
    lacking = ", ".join(key for key in pairs if key not in there)
    note = (
        (f"{column.header}: no test for {lacking}, because no values per example that pair with base's were kept.")
        if lacking
        else ""
    )
    return _tests(found, found), note


class _Pooled:
    """A reader of counts per sentence, summed over the first seeds of a row, with a cache."""

    def __init__(self, column: Column, counts_of: CountsOf) -> None:
        self._column, self._counts_of = column, counts_of
        self._known: dict[tuple[str, int], NDArray[Any] | None] = {}

    def pair(self, base: Row, row: Row) -> tuple[NDArray[Any], NDArray[Any], int] | None:
        """Return the counts of base, the counts of the row, and the number n of seeds over which they are summed.

        n is the smaller of the two numbers of seeds. Return None if counts are missing, or if the sentences do not form
        pairs.
        """
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
            self._known[row.key, seeds] = pooled(usable) if alike else None
        return self._known[row.key, seeds]
