"""Scores of running text from counts of each line: bits per byte and perplexities. Imports no torch."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

TEXT_COUNTS = ("nll", "pieces", "bytes", "words")  # of a line; nll in natural logarithms


def bits_per_byte(sums: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` (… × 4, TEXT_COUNTS) → bits per byte of the text (…)."""
    bits: NDArray[np.float64] = sums[..., 0] / (math.log(2) * sums[..., 2])
    return bits


def piece_perplexity(sums: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` (… × 4, TEXT_COUNTS) → perplexity per piece (…), at most e^700."""
    return _perplexity(sums, 1)


def word_perplexity(sums: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` (… × 4, TEXT_COUNTS) → perplexity per word between spaces (…), at most e^700."""
    return _perplexity(sums, 3)


def _perplexity(sums: NDArray[Any], unit: int) -> NDArray[np.float64]:
    perplexity: NDArray[np.float64] = np.exp(np.minimum(700.0, sums[..., 0] / np.maximum(sums[..., unit], 1)))
    return perplexity
