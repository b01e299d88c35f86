"""Exact sequences and exact pieces, for outputs of which one is right and every other wrong. Imports no torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.evaluation.scoring import SetScores

EXACT_COUNTS = ("exact", "sequences", "right", "pieces")


def exact(sums: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` (… × 4, EXACT_COUNTS) → share of exact sequences (…), 0 to 100."""
    return _share(sums[..., 0], sums[..., 1])


def pieces(sums: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` (… × 4, EXACT_COUNTS) → share of pieces at their place (…), 0 to 100."""
    return _share(sums[..., 2], sums[..., 3])


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = 100.0 * part / np.maximum(whole, 1)
    return shares


def score_exact(outputs: Sequence[str], references: Sequence[str]) -> SetScores:
    """The share of outputs that equal their reference, and of pieces that stand at their place, 0 to 100.

    Pieces are what stands between spaces. Each sentence counts the longer of output and reference, so that pieces that
    are missing or too many are wrong. Raises ValueError for unequal numbers of lines.
    """
    rows = []
    for output, reference in zip(outputs, references, strict=True):
        made, right = output.split(), reference.split()
        places = sum(a == b for a, b in zip(made, right, strict=False))
        rows.append([made == right, 1, places, max(len(made), len(right))])
    statistics = np.array(rows, dtype=np.int64).reshape(len(rows), len(EXACT_COUNTS))
    sums = statistics.sum(axis=0)
    signatures = {"exact": "whole sequences|space-separated", "pieces": "by place, of the longer side|space-separated"}
    return SetScores({"exact": float(exact(sums)), "pieces": float(pieces(sums))}, signatures, statistics)
