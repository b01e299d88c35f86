"""Convert batches from numpy to torch: the only file of this package that imports torch."""

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.data.batching import Batch


def to_tensors(batch: Batch[NDArray[np.int64]], *, pin: bool = False) -> Batch[torch.Tensor]:
    """The same batch as int64 tensors; `pin`: in pinned memory, from which a GPU copies asynchronously."""

    def convert(array: NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory() if pin else tensor

    return Batch(
        convert(batch.source), convert(batch.target_input), convert(batch.target_output),
        batch.num_source_tokens, batch.num_target_tokens,
    )  # fmt: skip
