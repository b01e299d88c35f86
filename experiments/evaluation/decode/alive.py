"""The hypotheses that still grow, and the history that they and the finished ones refer to.

Shapes: B sentences, K beam slots, T time.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from experiments.data.encoding.tokenizer import BOS_ID

NEVER = float("-inf")


@dataclass
class Alive:
    """K hypotheses per sentence, best first; a log probability of −inf marks an empty slot.

    Keys and values are never moved when a hypothesis changes its slot: `visible_BKTK` shows which slots (time, beam)
    are a hypothesis's own ancestors. Only these bits are reordered.
    """

    log_prob_BK: Tensor
    visible_BKTK: Tensor | None  # None: a single slot, which sees its whole past
    token_TBK: list[Tensor]  # slot (t, k) holds the t-th piece of a hypothesis; time 0 holds BOS
    parent_TBK: list[Tensor]  # and the slot of time t − 1 that it continues

    def __post_init__(self) -> None:
        B, K = self.log_prob_BK.shape
        self._itself_BK1K = _itself(B, K, self.log_prob_BK.device)
        self._first_B1 = torch.arange(0, B * K, K, device=self.log_prob_BK.device)[:, None]

    @classmethod
    def start(cls, sentences: int, width: int, like: Tensor) -> "Alive":
        """One empty hypothesis per sentence, in slot 0."""
        log_prob_BK = like.new_full((sentences, width), NEVER)
        log_prob_BK[:, 0] = 0.0
        token_BK = torch.full((sentences, width), BOS_ID, device=like.device)
        visible = _itself(sentences, width, like.device) if width > 1 else None
        return cls(log_prob_BK, visible, [token_BK], [torch.zeros_like(token_BK)])

    @property
    def time(self) -> int:
        """Pieces that every hypothesis has, without the start symbol."""
        return len(self.token_TBK) - 1

    @property
    def newest(self) -> Tensor:
        """(B, K): the last piece of each hypothesis, which the model reads next."""
        return self.token_TBK[-1]

    def advance(self, log_prob_BK: Tensor, token_BK: Tensor, parent_BK: Tensor) -> None:
        """Replace the hypotheses by continuations that are one piece longer."""
        self.log_prob_BK = log_prob_BK
        self.token_TBK.append(token_BK)
        self.parent_TBK.append(parent_BK)
        if self.visible_BKTK is not None:
            B, K, T, _ = self.visible_BKTK.shape
            past = self.visible_BKTK.view(B * K, T * K).index_select(0, (parent_BK + self._first_B1).view(-1))
            self.visible_BKTK = torch.cat([past.view(B, K, T, K), self._itself_BK1K], dim=2)

    def end(self, where_B: Tensor) -> None:
        """Stop the growth of all hypotheses of these sentences."""
        self.log_prob_BK = self.log_prob_BK.masked_fill(where_B[:, None], NEVER)

    def history(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Pieces and parents of these sentences, each (T + 1, rows, K)."""
        return torch.stack(self.token_TBK).index_select(1, rows), torch.stack(self.parent_TBK).index_select(1, rows)

    def select(self, rows: Tensor) -> "Alive":
        """The same for these sentences only."""
        visible = None if self.visible_BKTK is None else self.visible_BKTK.index_select(0, rows)
        token_TBK, parent_TBK = self.history(rows)
        return Alive(self.log_prob_BK.index_select(0, rows), visible, list(token_TBK), list(parent_TBK))


def _itself(sentences: int, width: int, device: torch.device) -> Tensor:
    """(B, K, 1, K): each hypothesis sees its own slot of the newest time and no other."""
    return torch.eye(width, dtype=torch.bool, device=device)[None, :, None, :].repeat(sentences, 1, 1, 1)
