"""Beam search as in the paper (section 6.1), after tensor2tensor's beam_search.py of June 2017.

A step extends every hypothesis of a sentence by every token and takes the 2 × K most probable of these candidates.
Candidates that end with EOS join the finished hypotheses. Their score is log P / ((5 + |Y|) / 6)^alpha, plus the
coverage penalty if it is set. The K best of the other candidates continue.

The search for a sentence ends in one of two cases:

 - No alive hypothesis can get a better score than the worst of the n best finished hypotheses. While a hypothesis
   grows, log P decreases and the length penalty increases, and the coverage penalty is at most 0. Therefore
   log P(best alive) / penalty(maximum length) is an upper bound for the score of every continuation. Stopping here does
   not change the result. (tensor2tensor may stop earlier, before n hypotheses are finished.)
 - The sentence reaches its maximum length, which is source length + max_extra_length, both including EOS. If no
   hypothesis is finished, the alive hypotheses are returned and marked as unfinished.

With a beam size of 1, a step takes one candidate instead of two. This is greedy search, which ends at the first EOS, as
in tensor2tensor's greedy decoder. The result for a sentence does not depend on the other sentences in its batch.

Shapes: B sentences, S source, K beam slots, T time, N finished hypotheses, C candidates, D d_model, W vocabulary, R
sentences whose results are collected. A comment before `GROUP` lists the further shapes of `best_candidates`.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from experiments.config.evaluation import OF_SEARCH
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID
from model.protocol import Network

NEVER = float("-inf")


@dataclass(frozen=True)
class Hypothesis:
    """One translation.

    ids: tokens without BOS and EOS.
    score: log_prob / length penalty, plus the coverage penalty if it is set.
    log_prob: the model's log P(Y|X). It includes EOS if the hypothesis is finished.
    finished: False if the hypothesis reached the maximum length without EOS. Its score then uses the length penalty of
        the maximum length, and is comparable with the scores of finished hypotheses.
    """

    ids: tuple[int, ...]
    score: float
    log_prob: float
    finished: bool = True


@dataclass
class Alive:
    """The K alive hypotheses of each sentence, best first. A log probability of −inf marks an empty slot.

    The keys and values in the cache are not moved when a hypothesis changes its slot. Instead, `visible_BKTK` marks the
    slots (time, beam) that belong to the past of each hypothesis. Only this mask is reordered.

    log_prob_BK: log P of each hypothesis.
    visible_BKTK: the mask of visible slots; None for a beam size of 1.
    token_TBK: the token in each slot. Time 0 holds BOS. Finished hypotheses are also read from this history.
    parent_TBK: the slot at time t − 1 that slot (t, k) continues.
    attended_BKS: the sum of the attention to each source token so far; None if the coverage penalty is off.
    """

    log_prob_BK: Tensor
    visible_BKTK: Tensor | None
    token_TBK: list[Tensor]
    parent_TBK: list[Tensor]
    attended_BKS: Tensor | None = None

    @property
    def time(self) -> int:
        """The number of tokens of every hypothesis, without BOS."""
        return len(self.token_TBK) - 1

    def advance(self, log_prob_BK: Tensor, token_BK: Tensor, parent_BK: Tensor) -> None:
        """Replace the hypotheses by continuations that are one token longer."""
        self.log_prob_BK = log_prob_BK
        self.token_TBK.append(token_BK)
        self.parent_TBK.append(parent_BK)
        if self.visible_BKTK is not None:
            B, K, T, _ = self.visible_BKTK.shape
            first_B1 = _upto(B * K, parent_BK.device)[::K, None]
            past = self.visible_BKTK.view(B * K, T * K).index_select(0, (parent_BK + first_B1).view(-1))
            self.visible_BKTK = torch.cat([past.view(B, K, T, K), _itself(B, K, parent_BK.device)], dim=2)
        if self.attended_BKS is not None:
            self.attended_BKS = self.attended_BKS.take_along_dim(parent_BK[..., None], 1)

    def history(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens and parents of some sentences. Both have the shape (T + 1, rows, K)."""
        return torch.stack(self.token_TBK).index_select(1, rows), torch.stack(self.parent_TBK).index_select(1, rows)

    def select(self, rows: Tensor) -> "Alive":
        """Return the alive hypotheses of some sentences."""
        visible = None if self.visible_BKTK is None else self.visible_BKTK.index_select(0, rows)
        token_TBK, parent_TBK = self.history(rows)
        attended = None if self.attended_BKS is None else self.attended_BKS.index_select(0, rows)
        return Alive(self.log_prob_BK.index_select(0, rows), visible, list(token_TBK), list(parent_TBK), attended)


@functools.lru_cache(maxsize=64)  # called at every step of a search
def _itself(sentences: int, width: int, device: torch.device) -> Tensor:
    """Return the mask of the newest time, (B, K, 1, K). Each hypothesis sees only its own slot."""
    with torch.inference_mode(False):
        return torch.eye(width, dtype=torch.bool, device=device)[None, :, None, :].repeat(sentences, 1, 1, 1)


def length_penalty(length: float, alpha: float) -> float:
    """Return ((5 + |Y|) / 6)^alpha. |Y| includes EOS (Wu et al. 2016, equation 14; tensor2tensor's beam_search.py)."""
    return float(((5 + length) / 6) ** alpha)


def coverage_penalty(attended_BKS: Tensor, source_mask_BS: Tensor | None, beta: float) -> Tensor:
    """Return β Σ_i log min(Σ_j p_ij, 1), (B, K) (Wu et al. 2016, arXiv 1609.08144, equation 14).

    p_ij is the attention of target token j to source token i, both including EOS. The penalty is at most 0. A
    source token that has received an attention of 1 or more contributes 0.
    """
    log_BKS = attended_BKS.clamp(torch.finfo(attended_BKS.dtype).tiny, 1).log()
    return beta * (log_BKS if source_mask_BS is None else log_BKS * source_mask_BS[:, None]).sum(-1)


class Finished:
    """The N best finished hypotheses of each sentence, best first.

    Finished hypotheses take no beam slots, so they do not change how the alive hypotheses continue. Of two hypotheses
    with equal scores, the earlier one stays. Steps after the end of a sentence therefore cannot change its result.
    """

    def __init__(self, score_BN: Tensor, log_prob_BN: Tensor, slot_BN: Tensor) -> None:
        self.score_BN, self.log_prob_BN, self.slot_BN = score_BN, log_prob_BN, slot_BN

    @classmethod
    def empty(cls, sentences: int, kept: int, like: Tensor) -> "Finished":
        """Return (B, N) empty entries. like: a tensor with the device and the type of the scores."""
        score_BN = like.new_full((sentences, kept), NEVER)
        return cls(score_BN, score_BN, torch.zeros_like(score_BN, dtype=torch.int64))

    @property
    def worst(self) -> Tensor:
        """The score of the worst finished hypothesis, (B,); −inf if a sentence has fewer than N."""
        return self.score_BN[:, -1]

    def add(self, log_prob_BC: Tensor, slot_BC: Tensor, penalty: float, covered_BC: Tensor | float = 0.0) -> None:
        """Keep the N best of the present hypotheses and the candidates.

        A candidate with a log probability of −inf is ignored.
        """
        score = torch.cat([self.score_BN, log_prob_BC / penalty + covered_BC], dim=1)
        score, order = torch.sort(score, dim=1, descending=True, stable=True)
        order = order[:, : self.score_BN.shape[1]]
        self.score_BN = score[:, : self.score_BN.shape[1]]
        self.log_prob_BN = torch.cat([self.log_prob_BN, log_prob_BC], dim=1).gather(1, order)
        self.slot_BN = torch.cat([self.slot_BN, slot_BC], dim=1).gather(1, order)

    def take_unfinished(
        self, where_B: Tensor, log_prob_BK: Tensor, slot_K: Tensor, penalty_B: Tensor, covered_BK: Tensor | float = 0.0
    ) -> None:
        """Take the N best alive hypotheses (K >= N) for the sentences in `where_B` that have no finished hypothesis."""
        take_B1 = (where_B & self.score_BN[:, 0].isneginf())[:, None]
        score_BK, order_BK = (log_prob_BK / penalty_B[:, None] + covered_BK).sort(dim=1, descending=True, stable=True)
        order_BN = order_BK[:, : self.score_BN.shape[1]]
        self.score_BN = torch.where(take_B1, score_BK[:, : self.score_BN.shape[1]], self.score_BN)
        self.log_prob_BN = torch.where(take_B1, log_prob_BK.gather(1, order_BN), self.log_prob_BN)
        self.slot_BN = torch.where(take_B1, slot_K[order_BN], self.slot_BN)

    def select(self, rows: Tensor) -> "Finished":
        """Return the finished hypotheses of some sentences."""
        return Finished(*(t.index_select(0, rows) for t in (self.score_BN, self.log_prob_BN, self.slot_BN)))


@dataclass(frozen=True)
class SearchSettings:
    """Settings of the search. The defaults are the paper's. `early_stop` and `compaction` do not change the results."""

    beam_size: int = 4
    length_penalty: float = 0.6  # alpha
    max_extra_length: int = 50  # maximum number of output tokens beyond the source length
    nbest: int = 1  # number of hypotheses to return per sentence; fewer are returned if fewer finish
    early_stop: bool = True  # end a sentence when no alive hypothesis can improve its result
    compaction: bool = True  # remove ended sentences from the batch
    coverage_penalty: float = 0.0  # beta

    def __post_init__(self) -> None:
        if min(self.beam_size - 1, self.length_penalty, self.max_extra_length, self.coverage_penalty) < 0:
            raise ValueError(f"impossible search settings: {self}")
        if not 1 <= self.nbest <= self.beam_size:
            raise ValueError(f"nbest = {self.nbest} is not between 1 and beam_size = {self.beam_size}")

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "SearchSettings":
        """Return the search settings among the settings of an evaluation. Missing settings have their defaults."""
        return cls(**{name: settings[name] for name in OF_SEARCH if name in settings and name != "replace_unknown"})

    @property
    def num_candidates(self) -> int:
        """The number of candidates per step: 1 for greedy search, otherwise 2 × K.

        Each slot has one candidate that ends with EOS, so at least K of 2 × K candidates do not end.
        """
        return 2 * self.beam_size if self.beam_size > 1 else 1


def beam_search(
    model: Network,
    source_BS: Tensor,
    source_mask_BS: Tensor | None,
    limits: Sequence[int],
    settings: SearchSettings,
    check_every: int = 1,
    after_check: Callable[[int], None] | None = None,
) -> list[list[Hypothesis]]:
    """Translate one batch. Return the `nbest` hypotheses of each sentence, best first.

    limits: the maximum output length of each sentence, including EOS.
    check_every: number of steps between checks for ended sentences. A check waits for the device.
    after_check: function that is called after each check with the number of ended sentences.
    """
    batch = _Batch(model, source_BS, source_mask_BS, limits, settings)
    while batch.sentences:
        batch.step()
        time = batch.alive.time
        at_limit = time in batch.limits
        if at_limit:
            batch.close()
        if at_limit or time % check_every == 0:
            if at_limit or batch.any_ended:
                batch.retire()
            if after_check is not None:
                after_check(len(limits) - len(batch.sentences))
    return batch.results


class _Batch:
    """The state of the search for one batch.

    The rows of the tensors are the sentences that have not ended. `sentences` has their indices in the batch.
    """

    def __init__(
        self,
        model: Network,
        source_BS: Tensor,
        source_mask_BS: Tensor | None,
        limits: Sequence[int],
        settings: SearchSettings,
    ) -> None:
        self.model, self.settings = model, settings
        memory_BSD = model.encode(source_BS, source_mask_BS)
        like = memory_BSD.new_empty(0, dtype=torch.promote_types(memory_BSD.dtype, torch.float32))
        B, K = len(limits), settings.beam_size
        attends = settings.coverage_penalty > 0
        self.state = model.start_decoding(memory_BSD, source_mask_BS, K, max(limits), attends=attends)
        self.source_mask_BS = source_mask_BS
        log_prob_BK = like.new_full((B, K), NEVER)
        log_prob_BK[:, 0] = 0.0  # each sentence begins with one empty hypothesis, in slot 0
        token_BK = torch.full((B, K), BOS_ID, device=like.device)
        visible = _itself(B, K, like.device) if K > 1 else None
        attended = like.new_zeros(B, K, source_BS.shape[1]) if attends else None
        self.alive = Alive(log_prob_BK, visible, [token_BK], [torch.zeros_like(token_BK)], attended)
        self.finished = Finished.empty(B, settings.nbest, like)
        self.sentences, self.limits = list(range(len(limits))), list(limits)
        self.limit_B = torch.tensor(self.limits, device=source_BS.device)
        penalties = [length_penalty(limit, settings.length_penalty) for limit in limits]
        self.longest_penalty_B = torch.tensor(penalties, dtype=like.dtype, device=source_BS.device)
        self.any_ended = False  # whether any hypothesis has ended; until then, no sentence can end early
        self.results: list[list[Hypothesis]] = [[] for _ in limits]

    def step(self) -> None:
        """Extend every hypothesis by one token."""
        alive, K = self.alive, self.settings.beam_size
        hidden_BKD = self.model.decode_step(alive.token_TBK[-1], self.state, alive.visible_BKTK)
        if alive.attended_BKS is not None:
            alive.attended_BKS = alive.attended_BKS + self.state.attention()
        used = 1 if alive.time == 0 else K  # at time 0, only slot 0 holds a hypothesis
        logits_BKW = self.model.next_logits(hidden_BKD[:, :used], self.state)
        if logits_BKW.shape[-1] < self.settings.num_candidates:  # with a tiny vocabulary, one slot is not sufficient
            used, logits_BKW = K, self.model.next_logits(hidden_BKD, self.state)
        log_prob_BC, token_BC, parent_BC = best_of_logits(
            alive.log_prob_BK[:, :used], logits_BKW, self.settings.num_candidates
        )
        ends_BC = token_BC == EOS_ID
        if ends_BC.is_cuda or ends_BC.any():  # on a GPU, the check would take longer than the work that it saves
            self.any_ended = True
            penalty = length_penalty(alive.time + 1, self.settings.length_penalty)
            covered_BC = self.covered(parent_BC)
            self.finished.add(log_prob_BC.masked_fill(~ends_BC, NEVER), alive.time * K + parent_BC, penalty, covered_BC)
            # Move the candidates that end behind the others. The sort is stable, so the others keep their order.
            order_BC = ends_BC.to(torch.uint8).sort(dim=1, stable=True).indices
            log_prob_BC, token_BC, parent_BC = (
                x.gather(1, order_BC) for x in (log_prob_BC.masked_fill(ends_BC, NEVER), token_BC, parent_BC)
            )
        alive.advance(log_prob_BC[:, :K], token_BC[:, :K], parent_BC[:, :K])

    def covered(self, slot_BC: Tensor | None = None) -> Tensor | float:
        """Return the coverage penalty of the slots in `slot_BC`, or of all slots if None; 0 if the penalty is off."""
        if self.alive.attended_BKS is None:
            return 0.0
        covered_BK = coverage_penalty(self.alive.attended_BKS, self.source_mask_BS, self.settings.coverage_penalty)
        return covered_BK if slot_BC is None else covered_BK.gather(1, slot_BC)

    def close(self) -> None:
        """End the sentences that have reached their maximum length."""
        K, where_B = self.settings.beam_size, self.limit_B == self.alive.time
        slot_K = torch.arange(self.alive.time * K, (self.alive.time + 1) * K, device=where_B.device)
        self.finished.take_unfinished(where_B, self.alive.log_prob_BK, slot_K, self.longest_penalty_B, self.covered())
        self.alive.log_prob_BK = self.alive.log_prob_BK.masked_fill(where_B[:, None], NEVER)

    def retire(self) -> None:
        """Read the results of ended sentences and remove these sentences from the batch.

        With `compaction`, nothing is done until at least an eighth of the sentences have ended, because moving the
        others takes time. Without it, nothing is done until all sentences have ended.
        """
        bound_B = self.alive.log_prob_BK[:, 0] / self.longest_penalty_B
        worst_B = self.finished.worst if self.settings.early_stop else torch.full_like(bound_B, NEVER)
        over = (
            ~(bound_B > worst_B)
        ).tolist()  # a comparison with NaN is False, so NaN counts as ended; `read` reports it
        ended = sum(over)
        if ended == len(over) or (self.settings.compaction and ended * 8 >= len(over)):
            gone = [row for row, is_over in enumerate(over) if is_over]
            stay = [row for row, is_over in enumerate(over) if not is_over]
            self.read(gone)
            if stay:
                # Move the last rows to the rows of ended sentences, so that as few rows as possible move.
                here, last = set(stay), [row for row in stay if row >= len(stay)]
                stay = [row if row in here else last.pop() for row in range(len(stay))]
                index = torch.tensor(stay, device=self.limit_B.device)
                self.state.keep(stay)
                self.alive, self.finished = self.alive.select(index), self.finished.select(index)
                if self.source_mask_BS is not None:
                    self.source_mask_BS = self.source_mask_BS.index_select(0, index)
                self.limit_B = self.limit_B.index_select(0, index)
                self.longest_penalty_B = self.longest_penalty_B.index_select(0, index)
            self.sentences = [self.sentences[row] for row in stay]
            self.limits = [self.limits[row] for row in stay]

    def read(self, rows: list[int]) -> None:
        """Read the hypotheses of ended sentences from the history, best first (R sentences with N hypotheses each).

        Raises ValueError if a sentence has no hypothesis, which happens if its logits were not finite.
        """
        index = torch.tensor(rows, device=self.limit_B.device)
        finished = self.finished.select(index)
        token_TRK, parent_TRK = (history.cpu().numpy() for history in self.alive.history(index))
        scores, log_probs, slot_RN = finished.score_BN.tolist(), finished.log_prob_BN.tolist(), finished.slot_BN
        time_RN, beam_RN = np.divmod(slot_RN.cpu().numpy(), self.settings.beam_size)
        # An empty entry has the score −inf and no tokens.
        length_RN = np.where(np.isneginf(np.array(scores)), 0, time_RN)
        ids = np.zeros((*length_RN.shape, int(length_RN.max(initial=0))), dtype=np.int64)
        row_R1 = np.arange(len(rows))[:, None]
        for time in range(ids.shape[-1], 0, -1):
            inside = length_RN >= time
            ids[:, :, time - 1] = np.where(inside, token_TRK[time, row_R1, beam_RN], 0)
            beam_RN = np.where(inside, parent_TRK[time, row_R1, beam_RN], beam_RN)
        for row, *kept in zip(rows, ids, scores, log_probs, length_RN, strict=True):
            hypotheses = [
                Hypothesis(tuple(pieces[:length].tolist()), score, log_prob, bool(length < self.limits[row]))
                for pieces, score, log_prob, length in zip(*kept, strict=True)
                if score > NEVER
            ]
            self.results[self.sentences[row]] = hypotheses
            if not hypotheses:
                raise ValueError("no hypothesis has a probability: the model's logits are not finite numbers")


# Further shapes: G groups of P neighbouring tokens, R remaining tokens, V = K × W, I examined tokens.


GROUP = 64  # P; the fastest of 16 … 128 on a CPU, measured with W = 500, 8,000 and 37,000
IN_CACHE = 2**20  # number of probabilities that fit into the cache of a CPU
MANY_SENTENCES = 8  # minimum batch size for which padded columns make torch.topk faster


class Candidates(NamedTuple):
    """The best continuations of each sentence's hypotheses, the most probable first."""

    log_prob_BC: Tensor  # log P of the extended hypothesis
    token_BC: Tensor
    parent_BC: Tensor  # the beam slot that the candidate continues


def best_of_logits(log_prob_BK: Tensor, logits_BKW: Tensor, count: int) -> Candidates:
    """Return the `count` best continuations of each sentence, from the model's logits. The logits may be overwritten.

    On a CPU, a few sentences are processed at a time, so that their probabilities fit into the cache. For 128 × 37,000
    logits (19 MB), this takes 3 ms instead of 11 ms.
    """
    B, K, W = logits_BKW.shape
    at_once = B if logits_BKW.is_cuda else max(1, IN_CACHE // (K * W))
    parts = [
        best_candidates(log_prob_BK[at : at + at_once], next_log_probs(logits_BKW[at : at + at_once]), count)
        for at in range(0, B, at_once)
    ]
    return Candidates(*(torch.cat(part) for part in zip(*parts, strict=True)))


def next_log_probs(logits_BKW: Tensor) -> Tensor:
    """Return log P of every next token in fp32 or wider. On a CPU, the logits may be overwritten.

    PAD and BOS have −inf, because no translation contains them. They get this value after the normalisation, so the
    other tokens have the same probabilities as in a teacher-forced pass. UNK may be generated like any other token.

    On a CPU, the fused log-softmax is faster than logsumexp alone (0.6 ms instead of 1.0 ms for 128 × 8,000).
    """
    wide = torch.promote_types(logits_BKW.dtype, torch.float32)
    if wide == logits_BKW.dtype and not logits_BKW.is_cuda:  # writing to the same memory is 15 % faster
        log_prob_BKW = torch.log_softmax(logits_BKW, dim=-1, out=logits_BKW)
    else:
        log_prob_BKW = torch.log_softmax(logits_BKW, dim=-1, dtype=wide)
    log_prob_BKW[..., PAD_ID : BOS_ID + 1].fill_(NEVER)  # PAD and BOS are neighbours in the vocabulary
    return log_prob_BKW


def best_candidates(log_prob_BK: Tensor, next_BKW: Tensor, count: int) -> Candidates:
    """Return the `count` most probable continuations of each sentence, or all K × W if these are fewer.

    Stage 1 computes the maximum of each group of tokens. The groups with the `count` largest maxima contain the `count`
    best continuations of complete groups. Stage 2 examines only these groups, and the tokens after the last complete
    group. torch.topk over all K × W continuations takes 3 to 6 times as long.
    """
    B, K, W = next_BKW.shape
    count, G = min(count, K * W), W // GROUP
    alive_BK1, flat_BV = log_prob_BK.unsqueeze(-1), next_BKW.view(B, K * W)
    if count >= K * G:
        best_BC, index_BC = (next_BKW + alive_BK1).view(B, K * W).topk(count)
        return Candidates(best_BC, index_BC % W, index_BC // W)

    R = W % GROUP
    maximum_BKG = next_BKW[..., : W - R].view(B, K, G, GROUP).amax(-1) + alive_BK1
    group_BC = _top(maximum_BKG.view(B, K * G), count)
    slot_BC = group_BC // G
    first_BC = group_BC * GROUP + slot_BC * R if R else group_BC * GROUP
    index_BI = (first_BC.unsqueeze(-1) + _upto(GROUP, next_BKW.device)).view(B, count * GROUP)
    inside_BCP = flat_BV.gather(1, index_BI).view(B, count, GROUP) + log_prob_BK.gather(1, slot_BC).unsqueeze(-1)
    inside_BI = inside_BCP.view(B, count * GROUP)
    if R:
        behind_BKR = next_BKW[..., W - R :] + alive_BK1
        behind_KR = _upto(K * W, next_BKW.device).view(K, W)[:, W - R :]
        inside_BI = torch.cat([inside_BI, behind_BKR.view(B, K * R)], dim=1)
        index_BI = torch.cat([index_BI, behind_KR.reshape(1, K * R).expand(B, -1)], dim=1)
    best_BC, place_BC = inside_BI.topk(count)
    index_BC = index_BI.gather(1, place_BC)
    return Candidates(best_BC, index_BC % W, index_BC // W)


def _top(x_BN: Tensor, count: int) -> Tensor:
    """Return x.topk(count).indices.

    On a CPU, torch uses a method that is four times slower if there are fewer than 64 · count columns. This function
    therefore adds columns up to that number, if at least half of them are present.
    """
    B, N = x_BN.shape
    if B >= MANY_SENTENCES and N < 64 * count <= 2 * N and not x_BN.is_cuda:
        indices = torch.constant_pad_nd(x_BN, (0, 64 * count - N), NEVER).topk(count).indices
        if int(indices.max()) < N:  # otherwise, a sentence has fewer than `count` values above −inf
            return indices
    return x_BN.topk(count).indices


@functools.lru_cache(maxsize=64)  # called at every step of a search
def _upto(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(count, device=device)
