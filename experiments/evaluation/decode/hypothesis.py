"""The result of a search, and reading a path from its history.

Shapes: R sentences, N hypotheses of each, T time, K beam slots.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor


@dataclass(frozen=True)
class Hypothesis:
    """One translation. `log_prob` is the model's log P(Y|X), the end symbol counted if the hypothesis is finished.

    An unfinished one reached the length limit; its length is that limit, and its score is comparable.
    """

    ids: tuple[int, ...]  # pieces, without BOS and EOS
    score: float  # log_prob / length penalty
    log_prob: float
    finished: bool = True


def read_back(
    score_RN: Tensor,
    log_prob_RN: Tensor,
    slot_RN: Tensor,
    token_TRK: Tensor,
    parent_TRK: Tensor,
    limits: list[int],
) -> list[list[Hypothesis]]:
    """The hypotheses of R sentences, best first.

    `slot_RN` = t × K + k is the slot of a hypothesis's last piece: its length is t. `token_TRK` has each slot's piece,
    `parent_TRK` the slot at t − 1 that it continues; time 0 has BOS. Hypotheses with score −inf are empty places.
    Raises ValueError for a sentence without any hypothesis: its logits were not numbers.
    """
    scores, log_probs = score_RN.tolist(), log_prob_RN.tolist()
    slot = slot_RN.cpu().numpy()
    token, parent = token_TRK.cpu().numpy(), parent_TRK.cpu().numpy()
    width = token.shape[2]
    length, place = np.where(np.isneginf(score_RN.double().cpu().numpy()), 0, slot // width), slot % width
    longest = int(length.max(initial=0))
    ids = np.zeros((*slot.shape, longest), dtype=np.int64)
    rows = np.arange(len(slot))[:, None]
    for time in range(longest, 0, -1):
        inside = length >= time
        ids[:, :, time - 1] = np.where(inside, token[time, rows, place], 0)
        place = np.where(inside, parent[time, rows, place], place)
    result = []
    for row, limit in enumerate(limits):
        found = [n for n, value in enumerate(scores[row]) if value > -np.inf]
        if not found:
            raise ValueError("no hypothesis has a probability: the model's logits are not finite numbers")
        result.append(
            [
                Hypothesis(
                    ids=tuple(ids[row, n, : length[row, n]].tolist()),
                    score=scores[row][n],
                    log_prob=log_probs[row][n],
                    finished=bool(length[row, n] < limit),
                )
                for n in found
            ]
        )
    return result
