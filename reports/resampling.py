"""Tests between two systems on the same sentences, from per-sentence BLEU counts; all rows of a table at once.

Approximate randomisation (Riezler and Maxwell 2005): if two systems were one, swapping their translations of a
sentence would change nothing, so the observed difference is compared with those after random swaps. Paired bootstrap
(Koehn 2004): the same resampled sentences for both systems. Draws and p-values are those of sacrebleu's `PairedTest`
with its default seed, but for ties: a difference that swaps cannot exceed is no evidence here (p = 1), there it is the
smallest p there is.

Shapes: N sentences, T trials, R rows, COUNTS = 10 (reports/bleu.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reports.bleu import COUNTS, bleu

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
    swaps = np.random.default_rng(seed).integers(2, size=(trials, len(base)), dtype=bool)
    found: list[Resampled] = []
    for block in _blocks(rows):
        both, observed = _sums(base, block)
        extreme = np.zeros(len(block), dtype=np.int64)
        kept, swapped = _columns(base, block)
        for start in range(0, trials, _TRIALS_AT_ONCE):
            some = swaps[start : start + _TRIALS_AT_ONCE].astype(swapped.dtype)
            one = np.repeat(both[1][None], len(some), axis=0)  # T × R × COUNTS: the row's sums …
            for column, moved in _expand(kept, some @ swapped, len(block)):
                one[..., column] += moved  # … plus base minus row where swapped
            other = both[0] + both[1] - one
            extreme += (abs(bleu(one) - bleu(other)) >= abs(observed) - _TIE).sum(axis=0)
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


def _columns(base: Counts, rows: Sequence[Counts]) -> tuple[list[list[int]], NDArray[np.floating]]:
    """Base minus rows (N × kept·R), without the columns that are zero in all rows (the reference's length) and with
    equal ones once (words and unigrams); `kept` says which columns of COUNTS each stands for."""
    differences = [base.astype(np.int64) - row for row in rows]
    kept: list[list[int]] = []
    for column in range(COUNTS):
        twin = next((k for k in kept if all(np.array_equal(d[:, column], d[:, k[0]]) for d in differences)), None)
        if twin:
            twin.append(column)
        elif any(d[:, column].any() for d in differences):
            kept.append([column])
    dtype = _precision(base, *rows)
    if not kept:
        return [], np.zeros((len(base), 0), dtype=dtype)
    return kept, np.concatenate([np.stack([d[:, k[0]] for d in differences], axis=1) for k in kept], axis=1).astype(
        dtype
    )


def _expand(
    kept: list[list[int]], product: NDArray[np.floating], rows: int
) -> Iterator[tuple[int, NDArray[np.floating]]]:
    for number, columns in enumerate(kept):
        moved = product[:, number * rows : (number + 1) * rows]
        yield from ((column, moved) for column in columns)
