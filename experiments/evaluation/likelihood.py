"""Perplexity of reference translations under the model.

Shapes: B sentences, S source, T target, D d_model, R real target pieces, W vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID
from experiments.device import Device
from experiments.errors import Preempted
from experiments.evaluation.in_batches import by_length, check_length, evaluating, pad, pad_sources
from model.protocol import Network

BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**16}  # padded target pieces of one pass
LOGIT_ROWS = 2**11  # rows of logits at once: 0.3 GB at 37,000 pieces


@dataclass(frozen=True)
class Likelihood:
    """−log P(targets | sources) in natural logarithm, unsmoothed, in float64, over pieces with EOS without padding."""

    nll: float
    pieces: int

    @property
    def perplexity(self) -> float:
        """exp of the mean per word-piece; infinite if it exceeds a float."""
        mean = self.nll / self.pieces
        return math.exp(mean) if mean < 700 else math.inf


def measure_likelihood(
    model: Network,
    sources: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    device: Device,
    *,
    max_batch_tokens: int | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Likelihood:
    """Teacher-forced likelihood of the targets (pieces without BOS and EOS, which are added here).

    The result does not depend on `max_batch_tokens` beyond rounding. Raises ValueError without any pair, UserError with
    the line number for a line too long for the model's position table, and Preempted.
    """
    if len(sources) != len(targets) or not targets:
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets: expected equal numbers, at least one")
    for line, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
        check_length(model.config, source, line, "source")
        check_length(model.config, target, line, "reference")
    per_sentence = torch.zeros(len(targets), dtype=torch.float64)
    with evaluating(model), device.autocast():
        for batch in _pack(sources, targets, max_batch_tokens or BATCH_TOKENS[device.torch_device.type]):
            if should_stop is not None and should_stop():
                raise Preempted
            nll_B = _sentence_nll(model, [sources[i] for i in batch], [targets[i] for i in batch], device)
            per_sentence[batch] = nll_B.cpu()
    return Likelihood(nll=math.fsum(per_sentence.tolist()), pieces=sum(len(t) + 1 for t in targets))


def _sentence_nll(
    model: Network, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], device: Device
) -> Tensor:
    """−log P of each target given its source, EOS included: (B,) in float64."""
    source_BS, source_mask_BS = pad_sources(sources, device)
    input_BT, real_BT = pad([[BOS_ID, *t] for t in targets], device)
    output_BT, _ = pad([[*t, EOS_ID] for t in targets], device)
    memory_BSD = model.encode(source_BS, source_mask_BS)
    hidden_BTD = model.decode(input_BT, memory_BSD, source_mask_BS)
    return piece_nll(model, hidden_BTD, output_BT, real_BT).sum(1)


def piece_nll(model: Network, hidden_BTD: Tensor, output_BT: Tensor, real_BT: Tensor) -> Tensor:
    """−log P of each piece, given the hidden state that predicts it: (B, T) in float64, 0 at padding."""
    hidden_RD, output_R = hidden_BTD[real_BT], output_BT[real_BT]
    rows = [slice(start, start + LOGIT_ROWS) for start in range(0, len(output_R), LOGIT_ROWS)]
    nll_BT = torch.zeros(real_BT.shape, dtype=torch.float64, device=real_BT.device)
    nll_BT[real_BT] = torch.cat([_of_logits(model.logits(hidden_RD[part]), output_R[part]) for part in rows])
    return nll_BT


def _of_logits(logits_RW: Tensor, output_R: Tensor) -> Tensor:
    wide = torch.promote_types(logits_RW.dtype, torch.float32)
    return F.cross_entropy(logits_RW.to(wide), output_R, reduction="none").double()


def _pack(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Batches of similar length with at most `max_tokens` padded pieces on the longer side, at least one pair."""
    length = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
    batch: list[int] = []
    for i in by_length([range(n) for n in length]):
        if batch and (len(batch) + 1) * length[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    yield batch
