"""Kernels: implementations of softmax(q kᵀ / √d_k + bias) v (equation 1). Each device uses the fastest one.

Shapes: B sentences, H heads, Q queries, M memory positions, K d_k, V d_v.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from model.layers.masks import causal_bias
from model.parts.dropout import dropout as drop

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]


def attend_plain(
    q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Compute equation 1 with batched products. For short sentences on a CPU this is faster than the fused kernel.

    Scores have the shape (…, M, Q), so the softmax over M reads contiguous queries. In the usual shape (…, Q, M) with
    M = 15, the softmax takes two to four times as long, and its backward pass takes three to seven times as long (torch
    2.13, CPU).
    """
    scores_BHMQ = (k_BHMK @ q_BHQK.mT).mul_(q_BHQK.shape[-1] ** -0.5)
    M, Q = scores_BHMQ.shape[-2:]
    # Expand the bias for every query: adding a bfloat16 bias that is strided or broadcast is ten times slower.
    if bias is not None:
        scores_BHMQ += bias.mT.expand(*bias.shape[:-2], M, Q).contiguous()
    if causal:
        scores_BHMQ += causal_bias(Q, scores_BHMQ.dtype, scores_BHMQ.device).mT.contiguous()
    weights_BHMQ = drop(softmax_over_memory(scores_BHMQ), dropout)
    return weights_BHMQ.mT @ v_BHMV


def attend_sdpa(
    q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Compute equation 1 with torch's fused kernels.

    torch selects a kernel by the device, by whether d_k = d_v, and by whether there is a bias.
    """
    return F.scaled_dot_product_attention(q_BHQK, k_BHMK, v_BHMV, attn_mask=bias, dropout_p=dropout, is_causal=causal)


FUSED_FROM = 32  # smallest number of positions for which the fused kernel is faster in fp32


def attend_by_length(
    q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Compute equation 1 with the kernel that is faster on a CPU, as measured by benchmarks/attention.py.

    In fp32 with 32 or more positions, the fused kernel is 1.04 to 1.8 times as fast. In bf16 this function does not use
    the fused kernel, because its backward pass takes 1.1 to 16 times as long for up to 512 positions. With d_k ≠ d_v or
    with dropout, this function does not use it either, because torch then falls back to a slower kernel.
    """
    positions = min(q_BHQK.shape[-2], k_BHMK.shape[-2])
    alike = q_BHQK.shape[-1] == v_BHMV.shape[-1] and not dropout
    fused = q_BHQK.dtype == torch.float32 and positions >= FUSED_FROM and alike
    return (attend_sdpa if fused else attend_plain)(q_BHQK, k_BHMK, v_BHMV, bias, causal, dropout)


KERNELS: dict[str, Kernel] = {"plain": attend_plain, "sdpa": attend_sdpa, "by_length": attend_by_length}
BEST_KERNEL = {"cuda": "sdpa", "cpu": "by_length"}  # device → kernel of "auto"; other devices use "plain"


def attend(
    q_BHQK: Tensor,
    k_BHMK: Tensor,
    v_BHMV: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> Tensor:
    """Return softmax(q kᵀ / √d_k + bias) v (equation 1), (B, H, Q, V).

    bias: broadcastable to (B, H, Q, M), from masks.blocking_bias. None if no position is blocked.
    causal: query t attends to memory 0 … t only; requires Q = M and no bias.
    dropout: rate on the attention weights.
    """
    if kernel == "auto":
        kernel = BEST_KERNEL.get(q_BHQK.device.type, "plain")
    if bias is not None:
        bias = bias.to(q_BHQK.dtype)  # under autocast, queries have a narrower type than the bias
    return KERNELS[kernel](q_BHQK, k_BHMK, v_BHMV, bias, causal, dropout)


# torch's softmax is slow over an axis that is not the last one. It computes 32 queries at a time, and the remaining
# queries one by one. For 85 × 4 × 24 × 24 scores in bfloat16, torch's softmax takes 0.96 ms and `_Softmax` takes
# 0.25 ms (torch 2.13, CPU, one thread).
LOG2_E = 1 / math.log(2)
AT_A_TIME = 32  # number of queries that torch's kernel computes at a time


def softmax_over_memory(scores_MQ: Tensor) -> Tensor:
    """Return the softmax over M: (…, M, Q) → (…, M, Q). It is computed in fp32 or wider."""
    # Check is_compiling first, so that a compiled graph does not depend on whether the length is a multiple of 32.
    if torch.compiler.is_compiling() or not scores_MQ.is_cpu or scores_MQ.shape[-1] % AT_A_TIME == 0:
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
    """Return the maximum over M, (…, 1, Q), by repeated halving. torch's amax over this axis is four times slower."""
    while (length := scores_MQ.shape[-2]) > 1:
        half = (length + 1) // 2
        scores_MQ = torch.maximum(scores_MQ[..., :half, :], scores_MQ[..., length - half :, :])
    return scores_MQ
