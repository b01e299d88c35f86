"""Beam search as in the paper (section 6.1), after tensor2tensor's beam_search.py of June 2017.

A step extends every hypothesis of a sentence by every piece and takes the 2 × K most probable of these candidates.
Those that end go to the finished set, with the score log P / ((5 + |Y|) / 6)^alpha; the K best of the others continue.
A sentence ends

 - when no alive hypothesis can beat the worst of the n best finished: log P only falls and the penalty only grows, so
   log P(best alive) / penalty(longest length allowed) is a bound for all continuations. This is exact: the result is
   that of a search to the longest length (tensor2tensor stops with fewer than n finished);
 - at its own longest length: source length + max_extra_length, EOS counted in both. If nothing has finished by then,
   the alive hypotheses are returned, marked unfinished.

A beam of 1 has one candidate instead of two and is then greedy search: it ends at the first EOS, as tensor2tensor's
greedy decoder does. A sentence's result does not depend on the others in its batch. More than 200 lines: the contract
with the model (`Decodable`) stands beside the search that uses it.

Shapes: B sentences, S source, K beam slots, T time, N hypotheses kept, C candidates, D d_model, W vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from experiments.data.encoding.tokenizer import EOS_ID
from experiments.evaluation.decode.alive import Alive
from experiments.evaluation.decode.candidates import NEVER, best_of_logits
from experiments.evaluation.decode.finished import Finished, length_penalty
from experiments.evaluation.decode.hypothesis import Hypothesis, read_back


class Decodable(Protocol):
    """The contract between the search and a model. Masks: True = may attend.

    Shapes: B sentences, S source, K beams, D the model's width, W vocabulary. A search calls `encode` once, then
    `start_decoding`, then per step `decode_step` and `next_logits`.

     - `encode`: piece ids (B, S), with a mask that is False at padding (None: no padding) → memory (B, S, D).
     - `start_decoding`: a state for `max_steps` steps of `beam_size` beams per sentence. The search passes it back
       unchanged, except `state.keep(sentences)`: drop all other sentences. ValueError if max_steps is impossible.
     - `decode_step`: reads one more piece per beam (B, K) at step t → hidden states (B, K, D). Beams keep their places:
       `visible_BKTK` (B, K, t + 1, K) marks the (time, beam) slots that are each beam's own past.
     - `next_logits`: hidden states of `decode_step` → scores of the next piece (B, K, W), before the softmax.
    """

    def encode(self, source_BS: Tensor, source_mask_BS: Tensor | None, /) -> Tensor: ...

    def start_decoding(
        self, memory_BSD: Tensor, source_mask_BS: Tensor | None, /, beam_size: int, max_steps: int
    ) -> Any: ...

    def decode_step(self, tokens_BK: Tensor, state: Any, visible_BKTK: Tensor | None, /) -> Tensor: ...

    def next_logits(self, hidden_BKD: Tensor, state: Any, /) -> Tensor: ...


@dataclass(frozen=True)
class SearchSettings:
    """The paper's settings, and two switches that never change a result."""

    beam_size: int = 4
    length_penalty: float = 0.6  # alpha
    max_extra_length: int = 50  # pieces beyond the source's length
    nbest: int = 1  # hypotheses returned per sentence, fewer if fewer finish
    early_stop: bool = True
    compaction: bool = True  # drop ended sentences from the batch

    def __post_init__(self) -> None:
        if self.beam_size < 1 or self.length_penalty < 0 or self.max_extra_length < 0:
            raise ValueError(f"impossible search settings: {self}")
        if not 1 <= self.nbest <= self.beam_size:
            raise ValueError(f"nbest = {self.nbest} is not between 1 and beam_size = {self.beam_size}")

    @property
    def num_candidates(self) -> int:
        """2 × K: at least K of them do not end, since each slot ends in one way. 1 makes a beam of 1 greedy."""
        return 2 * self.beam_size if self.beam_size > 1 else 1


def beam_search(
    model: Decodable,
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    limits: Sequence[int],
    settings: SearchSettings,
    check_every: int = 1,
    after_check: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Translate one batch: for each sentence its `nbest` hypotheses, best first.

    limits: the longest output of each sentence, EOS counted. Every `check_every` steps the search determines which
    sentences have ended (this waits for the device), and calls `after_check` with their number.
    """
    return _Batch(model, source_BS, source_mask_BS, limits, settings).run(check_every, after_check)


class _Batch:
    """A batch in progress. Rows are the unfinished sentences; `sentences` gives their indices in the batch."""

    def __init__(
        self,
        model: Decodable,
        source_BS: Tensor,
        source_mask_BS: Tensor | None,
        limits: Sequence[int],
        settings: SearchSettings,
    ) -> None:
        self.model, self.settings = model, settings
        memory_BSD = model.encode(source_BS, source_mask_BS)
        like = memory_BSD.new_empty(0, dtype=torch.promote_types(memory_BSD.dtype, torch.float32))
        self.state = model.start_decoding(
            memory_BSD, source_mask_BS, beam_size=settings.beam_size, max_steps=max(limits)
        )
        self.alive = Alive.start(len(limits), settings.beam_size, like)
        self.finished = Finished.empty(len(limits), settings.nbest, like)
        self.sentences, self.limits = list(range(len(limits))), list(limits)
        self.limit_B = torch.tensor(self.limits, device=source_BS.device)
        penalties = [length_penalty(limit, settings.length_penalty) for limit in limits]
        self.longest_penalty_B = torch.tensor(penalties, dtype=like.dtype, device=source_BS.device)
        self.any_ended = False  # no sentence is finished before a hypothesis has ended
        self.results: list[list[Hypothesis]] = [[] for _ in limits]

    def run(self, check_every: int, after_check: Callable[[int], None] | None) -> list[list[Hypothesis]]:
        while self.sentences:
            self.step()
            at_limit = self.alive.time in self.limits
            if at_limit:
                self.close(self.limit_B == self.alive.time)
            if at_limit or self.alive.time % check_every == 0:
                if at_limit or self.any_ended:
                    self.retire()
                if after_check is not None:
                    after_check(len(self.results) - len(self.sentences))
        return self.results

    def step(self) -> None:
        """Extend every hypothesis by one piece."""
        alive, K = self.alive, self.settings.beam_size
        hidden_BKD = self.model.decode_step(alive.newest, self.state, alive.visible_BKTK)
        used = 1 if alive.time == 0 else K  # at first one slot holds a hypothesis
        logits_BKW = self.model.next_logits(hidden_BKD[:, :used], self.state)
        if logits_BKW.shape[-1] < self.settings.num_candidates:  # a toy vocabulary would leave slots without candidate
            used, logits_BKW = K, self.model.next_logits(hidden_BKD, self.state)
        log_prob_BC, token_BC, parent_BC = best_of_logits(
            alive.log_prob_BK[:, :used], logits_BKW, self.settings.num_candidates
        )
        ends_BC = token_BC == EOS_ID
        if ends_BC.is_cuda or ends_BC.any():  # a check on a GPU costs more than adding nothing
            self.any_ended = True
            penalty = length_penalty(alive.time + 1, self.settings.length_penalty)
            self.finished.add(log_prob_BC.masked_fill(~ends_BC, NEVER), alive.time * K + parent_BC, penalty)
            # Those that end go behind the others. The sort is stable: the others keep their order.
            order_BC = ends_BC.to(torch.uint8).sort(dim=1, stable=True).indices
            log_prob_BC, token_BC, parent_BC = (
                x.gather(1, order_BC) for x in (log_prob_BC.masked_fill(ends_BC, NEVER), token_BC, parent_BC)
            )
        alive.advance(log_prob_BC[:, :K], token_BC[:, :K], parent_BC[:, :K])

    def close(self, where_B: Tensor) -> None:
        """End the sentences at their longest length."""
        K = self.settings.beam_size
        slot_K = torch.arange(self.alive.time * K, (self.alive.time + 1) * K, device=where_B.device)
        self.finished.take_unfinished(where_B, self.alive.log_prob_BK, slot_K, self.longest_penalty_B)
        self.alive.end(where_B)

    def retire(self) -> None:
        """Read the results of ended sentences and drop these, once enough have ended to justify moving the others."""
        bound_B = self.alive.log_prob_BK[:, 0] / self.longest_penalty_B
        worst_B = self.finished.worst if self.settings.early_stop else torch.full_like(bound_B, NEVER)
        over = (~(bound_B > worst_B)).tolist()  # negated so that NaN counts as ended; reading reports it
        ended = sum(over)
        if ended == len(over) or (self.settings.compaction and ended * 8 >= len(over)):
            gone = [row for row, is_over in enumerate(over) if is_over]
            stay = [row for row, is_over in enumerate(over) if not is_over]
            self.read(gone)
            if stay:
                stay = _closed_up(stay)
                self.keep(stay)
            self.sentences = [self.sentences[row] for row in stay]
            self.limits = [self.limits[row] for row in stay]

    def read(self, rows: list[int]) -> None:
        index = torch.tensor(rows, device=self.limit_B.device)
        finished = self.finished.select(index)
        found = read_back(
            finished.score_BN,
            finished.log_prob_BN,
            finished.slot_BN,
            *self.alive.history(index),
            [self.limits[row] for row in rows],
        )
        for row, hypotheses in zip(rows, found, strict=True):
            self.results[self.sentences[row]] = hypotheses

    def keep(self, rows: list[int]) -> None:
        index = torch.tensor(rows, device=self.limit_B.device)
        self.state.keep(rows)
        self.alive, self.finished = self.alive.select(index), self.finished.select(index)
        self.limit_B = self.limit_B.index_select(0, index)
        self.longest_penalty_B = self.longest_penalty_B.index_select(0, index)


def _closed_up(rows: list[int]) -> list[int]:
    """These rows, with the last ones moved to the places of missing ones, so that fewest change their place."""
    count = len(rows)
    here, last = {row for row in rows if row < count}, [row for row in rows if row >= count]
    return [place if place in here else last.pop() for place in range(count)]
