"""Softmax over the memory positions when these are not the last axis. Shapes: M memory positions, Q queries.

For 85 × 4 × 24 × 24 scores in bfloat16 torch's softmax takes 0.96 ms, this one 0.25 ms (2.13, CPU, one thread). Over an
axis that is not the last, torch computes 32 queries at a time and the remaining ones one by one.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LOG2_E = 1 / math.log(2)
AT_A_TIME = 32  # queries per pass of torch's kernel


def softmax_over_memory(scores_MQ: Tensor) -> Tensor:
    """(…, M, Q) → the same shape; each query's weights sum to 1. Computed in at least fp32."""
    if not scores_MQ.is_cpu or scores_MQ.shape[-1] % AT_A_TIME == 0 or torch.compiler.is_compiling():
        return scores_MQ.softmax(dim=-2)
    weights_MQ: Tensor = _Softmax.apply(scores_MQ)  # type: ignore[no-untyped-call]
    return weights_MQ


class _Softmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scores_MQ: Tensor) -> Tensor:
        wide_MQ = scores_MQ.to(torch.promote_types(scores_MQ.dtype, torch.float32))
        power_MQ = torch.sub(wide_MQ, _maximum(wide_MQ)).mul_(LOG2_E).exp2_()
        weights_MQ = power_MQ.mul_(power_MQ.sum(-2, keepdim=True).reciprocal_()).to(scores_MQ.dtype)
        ctx.save_for_backward(weights_MQ)
        return weights_MQ

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_MQ: Tensor) -> Tensor:
        (weights_MQ,) = ctx.saved_tensors
        return torch._softmax_backward_data(gradient_MQ, weights_MQ, -2, weights_MQ.dtype)


def _maximum(scores_MQ: Tensor) -> Tensor:
    """(…, 1, Q), by halving: torch's amax over this axis takes four times as long."""
    while (length := scores_MQ.shape[-2]) > 1:
        half = (length + 1) // 2
        scores_MQ = torch.maximum(scores_MQ[..., :half, :], scores_MQ[..., length - half :, :])
    return scores_MQ
