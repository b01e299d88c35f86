"""The length penalty and the hypotheses that have ended.

Shapes: B sentences, N hypotheses kept of each, C candidates.
"""

from typing import TypeVar

import torch
from torch import Tensor

NEVER = float("-inf")
Length = TypeVar("Length", int, Tensor)


def length_penalty(length: float, alpha: float) -> float:
    """((5 + |Y|) / 6)^alpha, EOS counted in |Y| (Wu et al. 2016, equation 14, as in tensor2tensor's beam_search.py)."""
    return float(((5 + length) / 6) ** alpha)


class Finished:
    """The N best ended hypotheses of each sentence, best first, separate from those still alive.

    They do not influence the search: a finished hypothesis takes no place of an alive one. Of equal scores the earlier
    one stays, so steps after a sentence's end cannot change its result.
    """

    def __init__(self, score_BN: Tensor, log_prob_BN: Tensor, slot_BN: Tensor) -> None:
        self.score_BN, self.log_prob_BN, self.slot_BN = score_BN, log_prob_BN, slot_BN

    @classmethod
    def empty(cls, sentences: int, kept: int, like: Tensor) -> "Finished":
        """(B, N) places, all free; `like` gives the device and the type of scores."""
        score_BN = like.new_full((sentences, kept), NEVER)
        return cls(score_BN, score_BN, torch.zeros_like(score_BN, dtype=torch.int64))

    @property
    def worst(self) -> Tensor:
        """(B,): the score to beat for a place among the N; −inf while a place is free."""
        return self.score_BN[:, -1]

    def add(self, log_prob_BC: Tensor, slot_BC: Tensor, penalty: float) -> None:
        """Keep the N best of the present ones and the candidates; a log probability of −inf is not a candidate."""
        score = torch.cat([self.score_BN, log_prob_BC / penalty], dim=1)
        score, order = torch.sort(score, dim=1, descending=True, stable=True)
        order = order[:, : self.score_BN.shape[1]]
        self.score_BN = score[:, : self.score_BN.shape[1]]
        self.log_prob_BN = torch.cat([self.log_prob_BN, log_prob_BC], dim=1).gather(1, order)
        self.slot_BN = torch.cat([self.slot_BN, slot_BC], dim=1).gather(1, order)

    def take_unfinished(self, where_B: Tensor, log_prob_BK: Tensor, slot_K: Tensor, penalty_B: Tensor) -> None:
        """For sentences of `where_B` without an ended hypothesis, take the N best alive ones (K >= N)."""
        kept = self.score_BN.shape[1]
        take_B1 = (where_B & self.score_BN[:, 0].isneginf())[:, None]
        alive_BN = log_prob_BK[:, :kept]
        self.score_BN = torch.where(take_B1, alive_BN / penalty_B[:, None], self.score_BN)
        self.log_prob_BN = torch.where(take_B1, alive_BN, self.log_prob_BN)
        self.slot_BN = torch.where(take_B1, slot_K[:kept], self.slot_BN)

    def select(self, rows: Tensor) -> "Finished":
        """The same for these sentences only."""
        return Finished(*(t.index_select(0, rows) for t in (self.score_BN, self.log_prob_BN, self.slot_BN)))
