"""Corpus BLEU of many sums of counts at once, in sacrebleu's arithmetic. Imports no torch.

A row of counts is what an evaluation keeps per sentence (`statistics.npy`): sys_len, ref_len, then correct and total
n-grams of orders 1 to 4. Sums over sentences give corpus BLEU.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNTS = 10
ORDERS = 4
_NO_SCORE = -9999999999.0  # sacrebleu's logarithm of a precision of zero


def bleu(sums: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` (… × COUNTS) → BLEU (…), 0 to 100: smoothing "exp", no effective order, as sacrebleu's default."""
    sums = sums.astype(np.float64)
    sys_len, ref_len = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = correct / total
        product = ratios[..., 0] * ratios[..., 1] * ratios[..., 2] * ratios[..., 3]
        precision = np.asarray(100.0 * np.sqrt(np.sqrt(product)))  # the geometric mean of four, without a logarithm
        lacking = ~(product > 0)  # each score for itself: it does not hang on what else is asked at once
        if lacking.any():
            precision[lacking] = np.exp(_smoothed(correct[lacking], total[lacking]) / ORDERS)
        penalty = np.where(sys_len < ref_len, np.exp(np.minimum(0.0, 1 - ref_len / sys_len)), 1.0)
    penalty = np.where((sys_len == 0) & (ref_len > 0), 0.0, penalty)
    score: NDArray[np.float64] = np.where(correct.any(axis=-1), penalty * precision, 0.0)
    return score


def _smoothed(correct: NDArray[Any], total: NDArray[Any]) -> NDArray[np.float64]:
    """Sum of the logarithms of precisions; an order without matches counts 1/2, the next 1/4 …; without n-grams 0."""
    zero = (correct == 0) & (total > 0)
    halvings = 2.0 ** np.cumsum(zero, axis=-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = 100.0 * np.where(zero, 1 / halvings, correct) / total
        logs = np.where(total > 0, np.log(precision), _NO_SCORE)
    summed: NDArray[np.float64] = logs.sum(axis=-1)
    return summed
