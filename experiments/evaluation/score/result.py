"""The result of scoring a set: of translations.py and parses.py."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class SetScores:
    """`metrics` and `signatures` by metric name; `statistics`: counts per sentence.

    BLEU's columns: sys_len, ref_len, correct_1 … correct_4, total_1 … total_4; sums over rows give corpus BLEU.
    """

    metrics: dict[str, float]
    signatures: dict[str, str]
    statistics: NDArray[np.int64]
