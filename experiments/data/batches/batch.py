"""Pairs as padded arrays. Imports no torch.

B batch, S source, T target. PAD fills up; masks are where an array differs from PAD.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.data.encoding.pairs import EncodedPairs
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID

Array = TypeVar("Array")
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Batch(Generic[Array]):
    """Sentence pairs of one (micro-)batch; knows no device. `Array` is numpy's here, torch's after tensors.py."""

    source: Array  # (B, S) int64: pieces EOS PAD…
    target_input: Array  # (B, T) int64: BOS pieces PAD…, what the decoder reads
    target_output: Array  # (B, T) int64: pieces EOS PAD…, the labels
    num_source_tokens: int  # EOS counted, padding not
    num_target_tokens: int


def collate(pairs: EncodedPairs, indices: Ids, shape: tuple[int, int, int] | None = None) -> Batch[Ids]:
    """Make the batch of some pairs: as small as possible, or of the given shape (B, S, T), padded with rows of PAD.

    No pairs give one row of PAD: a process with no pairs of a batch still takes part in the step.
    """
    source_lengths, target_lengths = pairs.source_lengths[indices], pairs.target_lengths[indices]
    tight = (max(1, len(indices)), *(int(lengths.max(initial=1)) for lengths in (source_lengths, target_lengths)))
    count, source_width, target_width = shape or tight
    rows = np.arange(len(indices))
    source = pairs.source.gather(indices, source_width, PAD_ID)
    source[rows, source_lengths - 1] = EOS_ID
    target_output = pairs.target.gather(indices, target_width, PAD_ID)
    target_input = np.full_like(target_output, PAD_ID)
    target_input[:, 0] = BOS_ID
    target_input[:, 1:] = target_output[:, :-1]
    target_output[rows, target_lengths - 1] = EOS_ID
    source, target_input, target_output = (_filled(a, count) for a in (source, target_input, target_output))
    return Batch(source, target_input, target_output, int(source_lengths.sum()), int(target_lengths.sum()))


def _filled(array: Ids, rows: int) -> Ids:
    return array if len(array) == rows else np.pad(array, ((0, rows - len(array)), (0, 0)), constant_values=PAD_ID)
