"""Compute scores of running text from counts per line: bits per byte and perplexities. Imports no torch."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEXT_COUNTS = ("nll", "pieces", "bytes", "words")  # counts per line; nll is −ln P


def bits_per_byte(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return bits per byte of text, of shape (…). sums: the sums of TEXT_COUNTS, of shape (…, 4)."""
    bits: NDArray[np.float64] = sums[..., 0] / (math.log(2) * sums[..., 2])
    return bits


def piece_perplexity(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return the perplexity per piece, at most e^700, of shape (…). sums: as in `bits_per_byte`."""
    return _perplexity(sums, 1)


def word_perplexity(sums: NDArray[Any]) -> NDArray[np.float64]:
    """Return the perplexity per word between spaces, at most e^700, of shape (…). sums: as in `bits_per_byte`."""
    return _perplexity(sums, 3)


def _perplexity(sums: NDArray[Any], unit: int) -> NDArray[np.float64]:
    perplexity: NDArray[np.float64] = np.exp(np.minimum(700.0, sums[..., 0] / np.maximum(sums[..., unit], 1)))
    return perplexity
