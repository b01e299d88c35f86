"""Attention masks as biases, which are added to the scores (section 3.2.3). Masks: True = may attend."""

import torch
from torch import Tensor

# The softmax weight of a blocked position is exactly 0 if any position is allowed. BLOCKED is finite in fp32, bf16 and
# fp64, so a row with all positions blocked becomes a uniform average instead of NaN.
BLOCKED = -1e30


def blocking_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor of the mask's shape: 0 where `mask` is True (may attend) and BLOCKED elsewhere."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, BLOCKED)


def causal_bias(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return the bias (T, T) that lets position t attend only to positions 0 … t.

    Section 3.1: "to prevent positions from attending to subsequent positions".
    """
    return torch.full((length, length), BLOCKED, dtype=dtype, device=device).triu(1)
