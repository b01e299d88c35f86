"""The hypotheses still growing, and the history that they and the finished ones point into.

Shapes: B sentences, K beam slots, T time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.data.tokenizer import BOS_ID

NEVER = float("-inf")


@dataclass
class Alive:
    """K hypotheses per sentence, best first; a log probability of −inf marks a slot that holds none.

    Keys and values are never moved when a hypothesis changes its slot: `visible_BKTK` tells which slots (time, beam)
    are a hypothesis's own ancestors. Only these bits are reordered.
    """

    log_prob_BK: Tensor
    visible_BKTK: Tensor | None  # None: one slot, which sees all of its past
    token_TBK: Tensor  # slot (t, k) holds the t-th piece of a hypothesis; time 0 holds BOS
    parent_TBK: Tensor  # and the slot of time t − 1 that it continues
    time: int = 0

    @classmethod
    def start(cls, sentences: int, width: int, longest: int, like: Tensor) -> "Alive":
        """One empty hypothesis per sentence, in slot 0."""
        log_prob_BK = like.new_full((sentences, width), NEVER)
        log_prob_BK[:, 0] = 0.0
        token_TBK = torch.full((longest + 1, sentences, width), BOS_ID, device=like.device)
        visible = _itself(sentences, width, like.device) if width > 1 else None
        return cls(log_prob_BK, visible, token_TBK, torch.zeros_like(token_TBK))

    @property
    def newest(self) -> Tensor:
        """(B, K): the last piece of each hypothesis, which the model reads next."""
        return self.token_TBK[self.time]

    def advance(self, log_prob_BK: Tensor, token_BK: Tensor, parent_BK: Tensor) -> None:
        """Replace the hypotheses by continuations of theirs, one piece longer."""
        self.time += 1
        self.log_prob_BK = log_prob_BK
        self.token_TBK[self.time] = token_BK
        self.parent_TBK[self.time] = parent_BK
        if self.visible_BKTK is not None:
            B, K, T, _ = self.visible_BKTK.shape
            first_B1 = torch.arange(0, B * K, K, device=parent_BK.device)[:, None]
            past = self.visible_BKTK.reshape(B * K, T * K).index_select(0, (parent_BK + first_B1).view(-1))
            self.visible_BKTK = torch.cat([past.view(B, K, T, K), _itself(B, K, past.device)], dim=2)

    def end(self, where_B: Tensor) -> None:
        """Let no hypothesis of these sentences grow further."""
        self.log_prob_BK = self.log_prob_BK.masked_fill(where_B[:, None], NEVER)

    def select(self, rows: Tensor) -> "Alive":
        """The same of these sentences only."""
        visible = None if self.visible_BKTK is None else self.visible_BKTK.index_select(0, rows)
        token, parent = self.token_TBK.index_select(1, rows), self.parent_TBK.index_select(1, rows)
        return Alive(self.log_prob_BK.index_select(0, rows), visible, token, parent, self.time)


def _itself(sentences: int, width: int, device: torch.device) -> Tensor:
    """(B, K, 1, K): each hypothesis sees its own slot of the newest time and no other."""
    return torch.eye(width, dtype=torch.bool, device=device)[None, :, None, :].expand(sentences, -1, -1, -1)
