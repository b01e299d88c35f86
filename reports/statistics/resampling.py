"""Tests between two systems on the same sentences, from per-sentence BLEU counts; all rows of a table at once.

Approximate randomisation (Riezler and Maxwell 2005): if two systems were one, swapping their translations of a
sentence would change nothing, so the observed difference is compared with those after random swaps. Paired bootstrap
(Koehn 2004): the same resampled sentences for both systems. Draws and p-values are those of sacrebleu's `PairedTest`
with its default seed, but for ties: a difference that swaps cannot exceed is no evidence here (p = 1), there it is the
smallest p there is.

Shapes: N sentences, T trials, R rows, COUNTS = 10 (reports/results/bleu.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.results.bleu import COUNTS, bleu

Counts = NDArray[np.integer]  # N × COUNTS
SEED = 12345  # sacrebleu's
TRIALS, RESAMPLES = 10_000, 1_000  # sacrebleu's defaults
EXACT = 2**24  # up to here sums of whole numbers are exact in 32-bit floats, in any order
_TRIALS_AT_ONCE, _ROWS_AT_ONCE = 500, 64
_TIE = 1e-9  # BLEU; closer than this two differences are one


@dataclass(frozen=True)
class Resampled:
    """One row against base."""

    difference: float  # row minus base, BLEU
    p: float
    low: float = float("nan")  # 95 % percentile interval of the difference (bootstrap only)
    high: float = float("nan")


def randomise(base: Counts, rows: Sequence[Counts], trials: int = TRIALS, seed: int = SEED) -> list[Resampled]:
    """Two-sided approximate randomisation of each row against base, with the same swaps for all rows."""
    swaps = np.random.default_rng(seed).integers(2, size=(trials, len(base)), dtype=bool).astype(np.float32)
    found: list[Resampled] = []
    for block in _blocks(rows):
        both, observed = _sums(base, block)
        extreme = np.zeros(len(block), dtype=np.int64)
        parts = _parts(base, block)
        for start in range(0, trials, _TRIALS_AT_ONCE):
            some = swaps[start : start + _TRIALS_AT_ONCE]
            one = np.repeat(both[1].T[:, None], len(some), axis=1)  # COUNTS × T × R: the rows' sums …
            for part in parts:
                moved = some[:, part.sentences] @ part.differences
                for number, columns in enumerate(part.columns):
                    one[columns] += moved[:, number * len(block) : (number + 1) * len(block)]
            other = (both[0] + both[1]).T[:, None] - one  # … plus base minus row where swapped; and the other way
            sizes = abs(bleu(np.moveaxis(one, 0, -1)) - bleu(np.moveaxis(other, 0, -1)))
            extreme += (sizes >= abs(observed) - _TIE).sum(axis=0)
        for difference, count in zip(observed.tolist(), extreme.tolist(), strict=True):
            found.append(Resampled(difference, (count + 1) / (trials + 1)))
    return found


def bootstrap(base: Counts, rows: Sequence[Counts], resamples: int = RESAMPLES, seed: int = SEED) -> list[Resampled]:
    """Paired bootstrap: sacrebleu's p-value, and the percentile interval of the difference."""
    drawn = np.random.default_rng(seed).choice(len(base), size=(resamples, len(base)), replace=True)
    times = np.stack([np.bincount(line, minlength=len(base)) for line in drawn])
    reference = bleu(times.astype(_precision(base)) @ base.astype(_precision(base)))
    found: list[Resampled] = []
    for block in _blocks(rows):
        _, observed = _sums(base, block)
        beside = np.concatenate([row.astype(_precision(base, row)) for row in block], axis=1)
        scores = bleu((times.astype(beside.dtype) @ beside).reshape(resamples, len(block), COUNTS))
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


def _precision(*counts: Counts) -> type[np.floating]:
    """32-bit floats where every sum that can come up is exact in them: twice as fast to multiply."""
    return np.float32 if max(int(c.sum(axis=0).max(initial=0)) for c in counts) * 2 < EXACT else np.float64


def _sums(base: Counts, rows: Sequence[Counts]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(2 × R × COUNTS) sums of base and of each row, and the differences of BLEU."""
    of_base = np.repeat(base.sum(axis=0, dtype=np.float64)[None], len(rows), axis=0)
    of_rows = np.stack([row.sum(axis=0, dtype=np.float64) for row in rows])
    return np.stack([of_base, of_rows]), bleu(of_rows) - bleu(of_base)


@dataclass(frozen=True)
class _Part:
    """Base minus rows in some of the sentences; block n of R columns is for each of columns[n] of COUNTS."""

    columns: list[list[int]]
    sentences: slice | NDArray[np.intp]
    differences: NDArray[np.floating]  # sentences × len(columns)·R


def _parts(base: Counts, rows: Sequence[Counts]) -> list[_Part]:
    """What swapping changes, to be multiplied as little as possible: n-grams of all orders are as many more as words
    are, but in the shortest sentences, and the reference's length never changes."""
    differences = np.stack([(base.astype(np.int32) - row).T for row in rows], axis=-1)  # COUNTS × N × R
    dtype = _precision(base, *rows)
    kept: list[list[int]] = []
    rest: list[_Part] = []
    for column in (column for column in range(COUNTS) if differences[column].any()):
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
