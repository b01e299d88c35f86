"""Attention masks as numbers added to the scores before the softmax (section 3.2.3). Masks: True = may attend."""

import torch
from torch import Tensor

# exp(score + BLOCKED) is exactly 0 beside any allowed score, and BLOCKED is finite in fp32, bf16 and fp64: a row with
# every position blocked becomes an even average instead of NaN.
BLOCKED = -1e30


def blocking_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where `mask` is True (may attend) and BLOCKED elsewhere; same shape."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, BLOCKED)


def causal_bias(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the bias (T, T) with which position t attends to 0 … t.

    Section 3.1: "to prevent positions from attending to subsequent positions".
    """
    return torch.full((length, length), BLOCKED, dtype=dtype, device=device).triu(1)
