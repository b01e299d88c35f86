"""Convert sentence pairs to padded arrays. Shapes: B batch, S source, T target.

Rows are padded with PAD. A mask is True where an array differs from PAD.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.data.encoding.sides import Sides
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID

Array = TypeVar("Array")
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Batch(Generic[Array]):
    """The sentence pairs of one batch or micro-batch. `Array` is a numpy array here and a torch tensor in training."""

    source: Array  # (B, S) int64: pieces EOS PAD…
    target_input: Array  # (B, T) int64: BOS pieces PAD…, the input of the decoder
    target_output: Array  # (B, T) int64: pieces EOS PAD…, the labels
    num_source_tokens: int  # number of source tokens, with EOS and without padding
    num_target_tokens: int  # number of target tokens, with EOS and without padding
    # (N,) int64: indices of the labels that are not padding, in the flattened target_output. If the loss has a fixed
    # number of rows, indices of padding follow. None if the indices are not computed in advance.
    real: Array | None = None


def collate(pairs: Sides, indices: Ids, shape: tuple[int, int, int] | None = None) -> Batch[Ids]:
    """Return a batch of pairs, padded to the given shape (B, S, T), or as small as possible without a shape.

    Without pairs, the batch is one row of PAD, because a process without pairs still takes part in the step.
    """
    source_lengths, target_lengths = (side.lengths[indices] for side in pairs.values())
    tight = (max(1, len(indices)), *(int(lengths.max(initial=1)) for lengths in (source_lengths, target_lengths)))
    count, source_width, target_width = shape or tight
    rows = np.arange(len(indices))
    source = pairs["source"].gather(indices, source_width, PAD_ID)
    source[rows, source_lengths - 1] = EOS_ID
    target_output = pairs["target"].gather(indices, target_width, PAD_ID)
    target_input = np.full_like(target_output, PAD_ID)
    target_input[:, 0] = BOS_ID
    target_input[:, 1:] = target_output[:, :-1]
    target_output[rows, target_lengths - 1] = EOS_ID
    if more := count - len(indices):
        arrays = (source, target_input, target_output)
        padded = (np.pad(array, ((0, more), (0, 0)), constant_values=PAD_ID) for array in arrays)
        source, target_input, target_output = padded
    return Batch(source, target_input, target_output, int(source_lengths.sum()), int(target_lengths.sum()))
