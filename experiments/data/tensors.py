"""Batches from numpy to torch: the one file of this room that imports torch."""

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.data.batch import Batch


def to_tensors(
    batch: Batch[NDArray[np.int64]], device: torch.device | str = "cpu", *, pin: bool = False
) -> Batch[torch.Tensor]:
    """The same batch as int64 tensors on `device`. `pin` copies through pinned memory without waiting (cuda)."""

    def move(array: NDArray[np.int64]) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor.pin_memory().to(device, non_blocking=True) if pin else tensor.to(device)

    return Batch(
        move(batch.source), move(batch.target_input), move(batch.target_output),
        batch.num_source_tokens, batch.num_target_tokens,
    )  # fmt: skip
