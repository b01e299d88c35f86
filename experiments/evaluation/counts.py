"""BLEU of many sums of counts at once, in sacrebleu's arithmetic; the scores of a set. Imports no torch.

An evaluation keeps one row of counts per sentence; sums over any sentences give their corpus score. So a report
recomputes a recorded score, and resamples sentences for tests.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ORDERS = 4
BLEU_COUNTS = (
    "sys_len", "ref_len", *(f"correct_{n}" for n in range(1, ORDERS + 1)), *(f"total_{n}" for n in range(1, ORDERS + 1))
)  # fmt: skip
_NO_SCORE = -9999999999.0  # sacrebleu's logarithm of a precision of zero


def bleu(sums: NDArray[Any]) -> NDArray[np.float64]:
    """`sums` (… × 10, BLEU_COUNTS) → BLEU (…), 0 to 100: smoothing "exp", no effective order, as sacrebleu does."""
    sums = sums.astype(np.float64)
    sys_len, ref_len = sums[..., 0], sums[..., 1]
    correct, total = sums[..., 2 : 2 + ORDERS], sums[..., 2 + ORDERS :]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = correct / total
        product = ratios[..., 0] * ratios[..., 1] * ratios[..., 2] * ratios[..., 3]
        precision = np.asarray(100.0 * np.sqrt(np.sqrt(product)))  # the geometric mean of four, without a logarithm
        lacking = ~(product > 0)  # each score on its own: it does not depend on the others in the call
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


# --- The result of scoring a set


@dataclass(frozen=True)
class SetScores:
    """`metrics` and `signatures` by metric name; `statistics`: counts per sentence.

    BLEU's columns: sys_len, ref_len, correct_1 … correct_4, total_1 … total_4; sums over rows give corpus BLEU.
    """

    metrics: dict[str, float]
    signatures: dict[str, str]
    statistics: NDArray[np.int64]
