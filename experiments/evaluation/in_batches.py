"""Sentences of unequal length as tensors: the common part of likelihood and search.

Shapes: B sentences, S source.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from experiments.data.encoding.tokenizer import EOS_ID, PAD_ID
from experiments.device import Device
from experiments.errors import UserError
from model.config import ModelConfig


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


class Sized(Protocol):
    def __len__(self) -> int: ...


def by_length(items: Sequence[Sized]) -> list[int]:
    """Indices, longest first (a batch that exceeds memory fails at once); equal lengths in the order of the input."""
    return sorted(range(len(items)), key=lambda i: -len(items[i]))


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
