"""Exact match of sequences and of pieces, for tasks with exactly one correct output per input. Imports no torch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.evaluation.scoring import SetScores

EXACT_COUNTS = ("exact", "sequences", "right", "pieces")


def exact(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of exact sequences, 0 to 100, of shape (…).

    sums: the sums of EXACT_COUNTS, of shape (…, 4).
    """
    return _share(sums[..., 0], sums[..., 1])


def pieces(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return the share of correct pieces, 0 to 100, of shape (…). sums: the sums of EXACT_COUNTS, of shape (…, 4)."""
    return _share(sums[..., 2], sums[..., 3])


def _share(part: NDArray[Any], whole: NDArray[Any]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = 100.0 * part / np.maximum(whole, 1)
    return shares


def score_exact(outputs: Sequence[str], references: Sequence[str]) -> SetScores:
    """Return the share of outputs that equal their reference, and the share of correct pieces, both 0 to 100.

    Spaces separate pieces. A piece is correct if it equals the reference's piece at the same position. The number of
    positions is the length of the output or of the reference, whichever is longer, so missing and extra pieces count
    as wrong. Raises ValueError if the numbers of outputs and references differ.
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
