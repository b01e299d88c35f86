"""The best continuations of a beam: an exact top-k in two stages.

Shapes: B sentences, K beam slots, W vocabulary, C candidates, G groups of P neighbouring pieces, R remaining pieces,
V = K × W, I pieces examined.
"""

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from experiments.data.encoding.tokenizer import BOS_ID, PAD_ID

GROUP = 64  # P; the fastest of 16 … 128, measured on a processor at W = 500, 8,000 and 37,000
IN_CACHE = 2**20  # probabilities
MANY_SENTENCES = 8  # from here on padding columns for torch.topk is faster
NEVER = float("-inf")


class Candidates(NamedTuple):
    """Continuations of each sentence's hypotheses, most probable first."""

    log_prob_BC: Tensor  # of the whole hypothesis
    token_BC: Tensor
    parent_BC: Tensor  # the beam slot that it continues


def best_of_logits(log_prob_BK: Tensor, logits_BKW: Tensor, count: int) -> Candidates:
    """`best_candidates` for the model's logits, a few sentences at a time to fit into a processor's cache. The logits
    may be overwritten.

    The log-softmax of 128 × 37,000 writes 19 MB that are read again at once: in parts it takes 3 ms instead of 11.
    """
    B, K, W = logits_BKW.shape
    at_once = B if logits_BKW.is_cuda else max(1, IN_CACHE // (K * W))
    if at_once >= B:
        return best_candidates(log_prob_BK, next_log_probs(logits_BKW), count)
    parts = [
        best_candidates(log_prob_BK[at : at + at_once], next_log_probs(logits_BKW[at : at + at_once]), count)
        for at in range(0, B, at_once)
    ]
    return Candidates(*(torch.cat(part) for part in zip(*parts, strict=True)))


def next_log_probs(logits_BKW: Tensor) -> Tensor:
    """log P of every next piece, in at least fp32, −inf for PAD and BOS, which no translation contains. On a processor
    it overwrites the logits.

    PAD and BOS are excluded after normalisation, so the others keep the model's own probability, equal to that of a
    teacher-forced pass. UNK may be generated, as a piece like any other. The fused log-softmax is faster on a processor
    than logsumexp alone (0.6 against 1.0 ms for 128 × 8,000), so the sum is not separate.
    """
    wide = torch.promote_types(logits_BKW.dtype, torch.float32)
    if wide == logits_BKW.dtype and not logits_BKW.is_cuda:  # 15 % faster than with new memory
        log_prob_BKW = torch.log_softmax(logits_BKW, dim=-1, out=logits_BKW)
    else:
        log_prob_BKW = torch.log_softmax(logits_BKW, dim=-1, dtype=wide)
    log_prob_BKW[..., PAD_ID : BOS_ID + 1].fill_(NEVER)  # they are neighbours
    return log_prob_BKW


def best_candidates(log_prob_BK: Tensor, next_BKW: Tensor, count: int) -> Candidates:
    """The `count` most probable continuations of each sentence (fewer if K × W is less).

    Stage 1 takes the maximum of each group of pieces: the groups with the `count` largest maxima contain the `count`
    best continuations. Stage 2 examines only these groups and the pieces after the last complete group. torch.topk over
    K × W takes 3 to 6 times as long.
    """
    B, K, W = next_BKW.shape
    count, G = min(count, K * W), W // GROUP
    alive_BK1, flat_BV = log_prob_BK.unsqueeze(-1), next_BKW.view(B, K * W)
    if count >= K * G:
        best_BC, index_BC = (next_BKW + alive_BK1).view(B, K * W).topk(count)
        return Candidates(best_BC, index_BC % W, index_BC // W)

    R = W % GROUP
    grouped_BKW = next_BKW[..., : W - R] if R else next_BKW
    maximum_BKG = grouped_BKW.view(B, K, G, GROUP).amax(-1) + alive_BK1
    _, group_BC = _top(maximum_BKG.view(B, K * G), count)
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


def _top(x_BN: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """x.topk(count). With fewer than 64 · count columns a processor takes four times as long as with so many, because
    torch then sorts by another method; so the columns are padded."""
    B, N = x_BN.shape
    if B >= MANY_SENTENCES and N < 64 * count <= 2 * N and not x_BN.is_cuda:
        values, indices = torch.constant_pad_nd(x_BN, (0, 64 * count - N), NEVER).topk(count)
        if int(indices.max()) < N:  # otherwise a sentence has fewer than `count` above −inf
            return values, indices
    values, indices = x_BN.topk(count)
    return values, indices


@functools.lru_cache(maxsize=8)  # used at every step of a search
def _upto(count: int, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.arange(count, device=device)
