"""Matrix products in oneDNN's blocked layout, for the many small products of a search on a CPU.

Shapes: R rows, D inputs, F outputs.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor

# oneDNN stores matrices in a blocked layout for its kernels. For few rows, changing the layout at every call costs more
# than the product. With one thread, the product of 4 × 512 by 512 × 37,000 took 26 ms with F.linear, 8 ms packed, and
# 2 ms packed in bf16. torch offers packing only to its compiler (torch.ops.mkldnn). If packing is missing or fails,
# F.linear is used instead.

# Smallest matrices, in elements, for which packing in fp32 (PACK_FROM) or bf16 (NARROW_FROM) is faster. The overhead of
# a packed call is 10 µs larger than that of F.linear.
PACK_FROM = 2**19
NARROW_FROM = 2**16
# Matrices between PACK_BESIDE_FROM and PACK_FROM are stored in both layouts. Calls with MANY_ROWS or more rows use the
# packed layout, which is 8 % faster for 440 × 128 by 128 × 512.
PACK_BESIDE_FROM, MANY_ROWS = 2**15, 160


class PackedLinear:
    """The function x Wᵀ + b, optionally with a ReLU.

    The weights are converted to `dtype`. On a CPU, small matrices are not converted to bf16.
    """

    def __init__(self, weight_FD: Tensor, bias_F: Tensor | None, dtype: torch.dtype, *, relu: bool = False) -> None:
        on_cpu = weight_FD.device.type == "cpu"
        if on_cpu and dtype == torch.bfloat16 and weight_FD.numel() < NARROW_FROM:
            dtype = weight_FD.dtype
        self.dtype, self.relu = dtype, relu
        self.bias_F = None if bias_F is None else bias_F.detach().to(dtype)
        self.weight_FD = weight_FD.detach().to(dtype)
        always = weight_FD.numel() >= PACK_FROM or dtype == torch.bfloat16
        worth = always or weight_FD.numel() >= PACK_BESIDE_FROM
        self.packed = _pack(self.weight_FD) if on_cpu and worth and packing_works(dtype) else None
        self.packed_from = 0 if always else MANY_ROWS
        if self.packed is not None and always:
            del self.weight_FD  # every call uses the packed copy

    def __call__(self, x_RD: Tensor) -> Tensor:
        """Return the product (R, F) for x (R, D), in the type of the weights."""
        if x_RD.dtype != self.dtype:
            x_RD = x_RD.to(self.dtype)
        if self.packed is not None and x_RD.shape[0] >= self.packed_from:
            return _packed_linear(x_RD, self.packed, self.bias_F, "relu" if self.relu else "none")
        y_RF = F.linear(x_RD, self.weight_FD, self.bias_F)
        return y_RF.relu_() if self.relu else y_RF


@functools.cache
def packing_works(dtype: torch.dtype) -> bool:
    """Return whether torch can pack matrices of this type on this CPU and computes correct products with them."""
    if dtype not in (torch.float32, torch.bfloat16) or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    weight_FD = torch.arange(-32, 32).view(8, 8).to(dtype) / 8
    x_RD, bias_F = torch.eye(8, dtype=dtype)[:3], torch.ones(8, dtype=dtype)
    try:
        product = _packed_linear(x_RD, _pack(weight_FD), bias_F, "relu")
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return torch.equal(product, F.linear(x_RD, weight_FD, bias_F).relu())


def _pack(weight_FD: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_FD.contiguous())
    return packed


def _packed_linear(x_RD: Tensor, packed: Tensor, bias_F: Tensor | None, after: str) -> Tensor:
    y_RF: Tensor = torch.ops.mkldnn._linear_pointwise.default(x_RD, packed, bias_F, after, [], "")
    return y_RF
