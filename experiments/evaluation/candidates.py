"""The best continuations of a beam: an exact top-k in two stages.

Shapes: B sentences, K beam slots, W vocabulary, C candidates, G groups of P neighbouring pieces, R pieces behind them.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from experiments.data.tokenizer import BOS_ID, PAD_ID

GROUP = 64  # P; measured best of 16 … 128 on a processor at W = 500, 8,000 and 37,000
IN_CACHE = 2**20  # probabilities
NEVER = float("-inf")


class Candidates(NamedTuple):
    """Continuations of each sentence's hypotheses, most probable first."""

    log_prob_BC: Tensor  # of the whole hypothesis
    token_BC: Tensor
    parent_BC: Tensor  # the beam slot that it continues


def best_of_logits(log_prob_BK: Tensor, logits_BKW: Tensor, count: int) -> Candidates:
    """`best_candidates` of the model's logits, some sentences at a time where a processor's cache holds no more.

    The log-softmax of 128 × 37,000 writes 19 MB that are read again at once: in parts 3 ms instead of 11.
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
    """log P of every next piece, at least fp32, with −inf for PAD and BOS, which no translation holds.

    They are left out after normalisation: what remains is the model's own probability, as a teacher-forced pass gives
    it. UNK may be generated: it is a piece with a probability like any other. The fused log-softmax is faster on a
    processor than logsumexp by itself (0.6 against 1.0 ms for 128 × 8,000), so the sum is not taken apart from it.
    """
    wide = torch.promote_types(logits_BKW.dtype, torch.float32)
    log_prob_BKW = torch.log_softmax(logits_BKW, dim=-1, dtype=wide)
    for piece in (PAD_ID, BOS_ID):
        log_prob_BKW.select(-1, piece).fill_(NEVER)
    return log_prob_BKW


def best_candidates(log_prob_BK: Tensor, next_BKW: Tensor, count: int) -> Candidates:
    """The `count` most probable continuations of each sentence (fewer if K × W is less).

    Stage 1 takes the maximum of each group of pieces: the groups with the `count` largest maxima hold the `count` best
    continuations. Stage 2 looks only into these, and at the pieces behind the last whole group. torch.topk over
    K × W costs 3 to 6 times as much.
    """
    B, K, W = next_BKW.shape
    count, G = min(count, K * W), W // GROUP
    if count >= K * G:
        best_BC, index_BC = (next_BKW + log_prob_BK.unsqueeze(-1)).view(B, K * W).topk(count)
        return Candidates(best_BC, index_BC % W, index_BC // W)

    grouped_BKGP = next_BKW[..., : G * GROUP].view(B, K, G, GROUP)
    maximum_BKG = grouped_BKGP.amax(-1) + log_prob_BK[:, :, None]
    chosen_BC = maximum_BKG.view(B, K * G).topk(count).indices
    slot_BC, group_BC = chosen_BC // G, chosen_BC % G
    rows_B1 = torch.arange(B, device=next_BKW.device)[:, None]
    inside_BCP = grouped_BKGP[rows_B1, slot_BC, group_BC] + log_prob_BK.gather(1, slot_BC)[:, :, None]
    behind_BKR = next_BKW[..., G * GROUP :] + log_prob_BK[:, :, None]
    best_BC, place_BC = torch.cat([inside_BCP.flatten(1), behind_BKR.flatten(1)], dim=1).topk(count)

    of_BC = (place_BC // GROUP).clamp(max=count - 1)
    token_BC = group_BC.gather(1, of_BC) * GROUP + place_BC % GROUP
    parent_BC = slot_BC.gather(1, of_BC)
    if R := W % GROUP:
        left_BC = place_BC - count * GROUP
        token_BC = torch.where(left_BC < 0, token_BC, W - R + left_BC % R)
        parent_BC = torch.where(left_BC < 0, parent_BC, left_BC // R)
    return Candidates(best_BC, token_BC, parent_BC)
