"""Tests between two systems on the same sentences, from counts per sentence; all rows of a table at once.

Approximate randomisation (Riezler and Maxwell 2005): if two systems were one, swapping their translations of a
sentence would change nothing, so the observed difference is compared with those after random swaps. Paired bootstrap
(Koehn 2004): the same resampled sentences for both systems. Draws and p-values are those of sacrebleu's `PairedTest`
with its default seed, but for ties: a difference that swaps cannot exceed is no evidence here (p = 1), there it is the
smallest p there is.

A metric is a function `value` of summed counts (experiments/tasks/columns.py).

Shapes: N sentences, T trials, R rows, C counts a sentence (10 for BLEU).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[Any]  # N × C, integers or real numbers
Value = Callable[[NDArray[Any]], NDArray[Any]]  # sums (… × C) → values (…)
SEED = 12345  # sacrebleu's
TRIALS, RESAMPLES = 10_000, 1_000  # sacrebleu's defaults
EXACT = 2**24  # up to here sums of whole numbers are exact in 32-bit floats, in any order
_TRIALS_AT_ONCE, _ROWS_AT_ONCE = 500, 64
_TIE = 1e-9  # in the metric's unit; closer than this two differences are one


@dataclass(frozen=True)
class Resampled:
    """One row against base."""

    difference: float  # row minus base
    p: float
    low: float = float("nan")  # 95 % percentile interval of the difference (bootstrap only)
    high: float = float("nan")


def randomise(base: Counts, rows: Sequence[Counts], value: Value, trials: int = TRIALS) -> list[Resampled]:
    """Two-sided approximate randomisation of each row against base, with the same swaps for all rows."""
    swaps = np.random.default_rng(SEED).integers(2, size=(trials, len(base)), dtype=bool).astype(np.float32)
    found: list[Resampled] = []
    for block in _blocks(rows):
        both, observed = _sums(base, block, value)
        extreme = np.zeros(len(block), dtype=np.int64)
        parts = _parts(base, block)
        for start in range(0, trials, _TRIALS_AT_ONCE):
            some = swaps[start : start + _TRIALS_AT_ONCE]
            one = np.repeat(both[1].T[:, None], len(some), axis=1)  # C × T × R: the rows' sums …
            for part in parts:
                moved = some[:, part.sentences] @ part.differences
                for number, columns in enumerate(part.columns):
                    one[columns] += moved[:, number * len(block) : (number + 1) * len(block)]
            other = (both[0] + both[1]).T[:, None] - one  # … plus base minus row where swapped; and the other way
            sizes = abs(value(np.moveaxis(one, 0, -1)) - value(np.moveaxis(other, 0, -1)))
            extreme += (sizes >= abs(observed) - _TIE).sum(axis=0)
        for difference, count in zip(observed.tolist(), extreme.tolist(), strict=True):
            found.append(Resampled(difference, (count + 1) / (trials + 1)))
    return found


def bootstrap(base: Counts, rows: Sequence[Counts], value: Value, resamples: int = RESAMPLES) -> list[Resampled]:
    """Paired bootstrap: sacrebleu's p-value, and the percentile interval of the difference."""
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
    """Counts of several seeds, added sentence by sentence."""
    added: Counts = np.stack(counts).sum(axis=0, dtype=np.int32 if _whole(counts) else np.float64)
    return added


def _whole(counts: Sequence[Counts]) -> bool:
    return all(np.issubdtype(c.dtype, np.integer) for c in counts)


def _precision(*counts: Counts) -> type[np.floating]:
    """32-bit floats where every sum that can come up is exact in them: twice as fast to multiply."""
    largest = max(float(abs(c).sum(axis=0).max(initial=0)) for c in counts) if _whole(counts) else EXACT
    return np.float32 if largest * 2 < EXACT else np.float64


def _sums(base: Counts, rows: Sequence[Counts], value: Value) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(2 × R × C) sums of base and of each row, and the differences of the metric."""
    of_base = np.repeat(base.sum(axis=0, dtype=np.float64)[None], len(rows), axis=0)
    of_rows = np.stack([row.sum(axis=0, dtype=np.float64) for row in rows])
    return np.stack([of_base, of_rows]), value(of_rows) - value(of_base)


@dataclass(frozen=True)
class _Part:
    """Base minus rows in some of the sentences; block n of R columns serves every one of columns[n]."""

    columns: list[list[int]]
    sentences: slice | NDArray[np.intp]
    differences: NDArray[np.floating]  # sentences × len(columns)·R


def _parts(base: Counts, rows: Sequence[Counts]) -> list[_Part]:
    """What swapping changes, with as few products as possible.

    BLEU's totals of all orders differ by as much as the words do, except in the shortest sentences, and the
    reference's length never differs.
    """
    signed = base.astype(np.int32 if _whole([base]) else np.float64)
    differences = np.stack([(signed - row).T for row in rows], axis=-1)  # C × N × R
    dtype = _precision(base, *rows)
    kept: list[list[int]] = []
    rest: list[_Part] = []
    for column in (column for column in range(base.shape[1]) if differences[column].any()):
        for alike in kept:
            beyond = differences[column] - differences[alike[0]]
            sentences = np.flatnonzero(beyond.any(axis=1))
            if len(sentences) <= len(base) // 4:
                alike.append(column)
                rest.append(_Part([[column]], sentences, beyond[sentences].astype(dtype)))
                break
        else:
            kept.append([column])
    if not kept:
        return []
    whole = np.concatenate([differences[alike[0]] for alike in kept], axis=1).astype(dtype)
    return [_Part(kept, slice(None), whole), *(part for part in rest if len(part.differences))]
