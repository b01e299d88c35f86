"""Likelihood of text under a model: perplexity of reference translations.

Shapes: B sentences, S source, T target, D d_model, R real target pieces, W vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID
from experiments.device import Device
from experiments.errors import Preempted, UserError
from model.config import ModelConfig
from model.protocol import Network

BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**16}  # padded target pieces of one pass
LOGIT_ROWS = 2**11  # rows of logits at once: 0.3 GB at 37,000 pieces


@dataclass(frozen=True)
class Likelihood:
    """−log P(targets | sources) in natural logarithm, unsmoothed, in float64, over pieces with EOS without padding.

    right: the number of pieces that the model finds most probable, given the source and the pieces before them.
    """

    nll: float
    pieces: int
    right: int = 0

    @property
    def perplexity(self) -> float:
        """exp of the mean per word-piece; infinite if it exceeds a float."""
        mean = self.nll / self.pieces
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def token_accuracy(self) -> float:
        """`right` as a share of the pieces, 0 to 100."""
        return 100 * self.right / self.pieces


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

    The result does not depend on `max_batch_tokens` beyond rounding. Raises UserError with the line number for a line
    too long for the model's position table, and Preempted.
    """
    for line, (source, target) in enumerate(zip(sources, targets, strict=True), start=1):
        check_length(model.config, source, line, "source")
        check_length(model.config, target, line, "reference")
    per_sentence, right = torch.zeros(len(targets), dtype=torch.float64), 0
    with evaluating(model), device.autocast():
        for batch in _pack(sources, targets, max_batch_tokens or BATCH_TOKENS[device.torch_device.type]):
            if should_stop is not None and should_stop():
                raise Preempted
            nll_B, right_B = _sentences(model, [sources[i] for i in batch], [targets[i] for i in batch], device)
            per_sentence[batch] = nll_B.cpu()
            right += int(right_B.sum())
    pieces = sum(len(t) + 1 for t in targets)
    return Likelihood(nll=math.fsum(per_sentence.tolist()), pieces=pieces, right=right)


def _sentences(
    model: Network, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], device: Device
) -> tuple[Tensor, Tensor]:
    """−log P of each target given its source in float64, and its number of right pieces, EOS included: (B,) each."""
    source_BS, source_mask_BS = pad_sources(sources, device)
    input_BT, real_BT = pad([[BOS_ID, *t] for t in targets], device)
    output_BT, _ = pad([[*t, EOS_ID] for t in targets], device)
    memory_BSD = model.encode(source_BS, source_mask_BS)
    hidden_BTD = model.decode(input_BT, memory_BSD, source_mask_BS)
    nll_BT, right_BT = piece_nll(model, hidden_BTD, output_BT, real_BT)
    return nll_BT.sum(1), right_BT.sum(1)


def piece_nll(model: Network, hidden_BTD: Tensor, output_BT: Tensor, real_BT: Tensor) -> tuple[Tensor, Tensor]:
    """−log P of each piece, given the hidden state that predicts it, and whether it is the most probable one.

    (B, T) in float64 and (B, T) of booleans; 0 and False at padding.
    """
    hidden_RD, output_R = hidden_BTD[real_BT], output_BT[real_BT]
    nll_BT = torch.zeros(real_BT.shape, dtype=torch.float64, device=real_BT.device)
    right_BT = torch.zeros_like(real_BT)
    found = []
    for start in range(0, len(output_R), LOGIT_ROWS):
        logits_RW, expected_R = (
            model.logits(hidden_RD[start : start + LOGIT_ROWS]),
            output_R[start : start + LOGIT_ROWS],
        )
        wide = torch.promote_types(logits_RW.dtype, torch.float32)
        nll_R = F.cross_entropy(logits_RW.to(wide), expected_R, reduction="none").double()
        found.append((nll_R, logits_RW.argmax(-1) == expected_R))
    nll_BT[real_BT] = torch.cat([nll_R for nll_R, _ in found])
    right_BT[real_BT] = torch.cat([right_R for _, right_R in found])
    return nll_BT, right_BT


def _pack(sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], max_tokens: int) -> Iterator[list[int]]:
    """Batches of similar length with at most `max_tokens` padded pieces on the longer side, at least one pair."""
    length = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
    batch: list[int] = []
    for i in by_length(length):
        if batch and (len(batch) + 1) * length[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    yield batch


# --- Sentences of unequal length as tensors: the common part of likelihood and search


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inference mode without dropout; afterwards modules return to training mode if they were in it."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def by_length(lengths: Sequence[int]) -> list[int]:
    """Indices, longest first (a batch that exceeds memory fails at once); equal lengths in the order of the input."""
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def pad(rows: Sequence[Sequence[int]], device: Device) -> tuple[Tensor, Tensor]:
    """(B, S) ids padded on the right, and the mask that is True at real ones."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids_BS = torch.tensor([[*row, *[PAD_ID] * (longest - len(row))] for row in rows])
    real_BS = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return device.move(ids_BS), device.move(real_BS)


def pad_sources(rows: Sequence[Sequence[int]], device: Device) -> tuple[Tensor, Tensor | None]:
    """Sources with EOS added and padded, and their mask; None without padding, which is faster."""
    ids_BS, real_BS = pad([[*row, EOS_ID] for row in rows], device)
    equal = all(len(row) == len(rows[0]) for row in rows)
    return ids_BS, None if equal else real_BS


def check_length(config: ModelConfig, ids: Sequence[int], line: int, side: str) -> int:
    """The length with EOS. Raises UserError if a learned position table is too short for it."""
    length = len(ids) + 1
    if config.longest is not None and length > config.longest:
        raise UserError(
            f"Line {line} of the {side} has {length} pieces (EOS counted), but the model learned positions for "
            f"{config.max_length}: split or drop the line, or train with a larger model.max_length."
        )
    return length
