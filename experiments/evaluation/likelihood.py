"""Measure the likelihood of text under a model, for example for the perplexity of reference translations.

Shapes: B sentences, S source, T target, D d_model, R target tokens without padding, W vocabulary.
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

BATCH_TOKENS = {"cpu": 2**12, "cuda": 2**16}  # maximum number of positions of a batch, with padding
LOGIT_ROWS = 2**11  # number of rows of logits computed at a time: 0.3 GB with 37,000 word pieces


@dataclass(frozen=True)
class Likelihood:
    """The likelihood of target sentences given their source sentences.

    nll: −log P(targets | sources), in float64, with the natural logarithm, without label smoothing and padding.
    pieces: the number of target word pieces, including EOS.
    right: the number of target word pieces to which the model gives the highest probability, given the source and the
        previous target pieces.
    """

    nll: float
    pieces: int
    right: int = 0

    @property
    def perplexity(self) -> float:
        """The exponential of the mean nll per word piece; infinity if it is too large for a float."""
        mean = self.nll / self.pieces
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def token_accuracy(self) -> float:
        """The percentage of `right` among all word pieces, from 0 to 100."""
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
    """Return the teacher-forced likelihood of the targets.

    sources, targets: ids without BOS and EOS. This function adds BOS and EOS.
    max_batch_tokens: maximum number of positions of a batch. It changes the result only by rounding errors.
    should_stop: tested before each batch.

    Raises UserError if a line is too long for the model's position table. Raises Preempted if `should_stop()` is True.
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
    """Return −log P of each target given its source in float64, and the number of correctly predicted target tokens.

    EOS is included. Both results have the shape (B,).
    """
    source_BS, source_mask_BS = pad_sources(sources, device)
    input_BT, real_BT = pad([[BOS_ID, *t] for t in targets], device)
    output_BT, _ = pad([[*t, EOS_ID] for t in targets], device)
    memory_BSD = model.encode(source_BS, source_mask_BS)
    hidden_BTD = model.decode(input_BT, memory_BSD, source_mask_BS)
    nll_BT, right_BT = piece_nll(model, hidden_BTD, output_BT, real_BT)
    return nll_BT.sum(1), right_BT.sum(1)


def piece_nll(model: Network, hidden_BTD: Tensor, output_BT: Tensor, real_BT: Tensor) -> tuple[Tensor, Tensor]:
    """Return −log P of each output token, and whether it is the most probable token at its position.

    hidden_BTD: the hidden states that predict the output tokens.

    The results have the shape (B, T) and the types float64 and bool. At padding they are 0 and False.
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
    """Yield batches of pairs with similar lengths, as lists of indices.

    A batch has at most `max_tokens` positions on its longer side, including padding, unless it has only one pair.
    """
    length = [max(len(s), len(t)) + 1 for s, t in zip(sources, targets, strict=True)]
    batch: list[int] = []
    for i in by_length(length):
        if batch and (len(batch) + 1) * length[batch[0]] > max_tokens:
            yield batch
            batch = []
        batch.append(i)
    yield batch


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Return a context with inference mode and without dropout.

    After the context, modules that were in training mode return to it.
    """
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
    """Return the indices sorted by length, the longest first. Indices of equal lengths keep their order.

    The longest sentences come first, so that a batch that is too large for the memory fails at the start.
    """
    return sorted(range(len(lengths)), key=lambda i: -lengths[i])


def pad(rows: Sequence[Sequence[int]], device: Device) -> tuple[Tensor, Tensor]:
    """Return the ids padded on the right, (B, S), and a mask that is False at padding."""
    lengths = [len(row) for row in rows]
    longest = max(lengths)
    ids_BS = torch.tensor([[*row, *[PAD_ID] * (longest - len(row))] for row in rows])
    real_BS = torch.arange(longest) < torch.tensor(lengths)[:, None]
    return device.move(ids_BS), device.move(real_BS)


def pad_sources(rows: Sequence[Sequence[int]], device: Device) -> tuple[Tensor, Tensor | None]:
    """Add EOS to the sources and pad them. Return the ids and the mask, or None as the mask if there is no padding.

    Without a mask, the network is faster.
    """
    ids_BS, real_BS = pad([[*row, EOS_ID] for row in rows], device)
    equal = all(len(row) == len(rows[0]) for row in rows)
    return ids_BS, None if equal else real_BS


def check_length(config: ModelConfig, ids: Sequence[int], line: int, side: str) -> int:
    """Return the length with EOS. Raises UserError if the model's learned position table is too short for it."""
    length = len(ids) + 1
    if config.longest is not None and length > config.longest:
        raise UserError(
            f"Line {line} of the {side} has {length} pieces (EOS counted), but the model learned positions for "
            f"{config.max_length}: split or drop the line, or train with a larger model.max_length."
        )
    return length
