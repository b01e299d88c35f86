"""Products of matrices in other forms than torch's, for inference on a processor: in 8 bits, and packed for oneDNN.

Shapes: R rows, D inputs, F outputs.
"""

import functools

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.parts.embedding import Embedding

# --- Products in 8 bits on a processor: weights with one scale an output, activations with one scale a row
# A row x of D numbers becomes q = round(127 x / m), m its largest magnitude, and each row of W likewise, once. The
# integer product is exact in 32 bits, so a row's result does not depend on the rows beside it; with one scale for all
# rows it would. Scaled back, m s (q W_qᵀ) + b is about x Wᵀ + b: the dynamic quantisation of Jacob et al. 2018
# (arXiv 1712.05877) without zero points.
#
# `torch._int_mm` is oneDNN's product. torch's other products in 8 bits have one scale for all rows
# (quantized.linear_dynamic, whose tensors are deprecated), need the same work around them and 20 µs more a call
# (onednn.qlinear_pointwise), or keep activations in bf16 and are slower than fp32 from 16 rows on
# (_weight_int8pack_mm).


LARGEST = 127  # ±127: the scale is the same on both sides of zero


class Int8Product:
    """x W ᵀ + b, optionally with a ReLU."""

    def __init__(self, weight_FD: Tensor, bias_F: Tensor | None, *, relu: bool = False) -> None:
        weight_FD = weight_FD.detach()
        largest_F1 = weight_FD.abs().amax(-1, keepdim=True)
        # A row of zeros has no scale; its quotients are not numbers.
        rows_FD = (weight_FD * (LARGEST / largest_F1)).nan_to_num_(0).round_().to(torch.int8)
        self.weight_DF = rows_FD.contiguous().mT  # in this order a product of one row copies nothing
        self.scale_F = largest_F1[:, 0] / LARGEST**2  # with a row's m as the other factor
        self.bias_F = None if bias_F is None else bias_F.detach()
        self.relu = relu

    def __call__(self, x: Tensor) -> Tensor:
        """(…, D) → (…, F), in the weights' type before they were quantised. A row that is not finite stays NaN."""
        x_RD = x.reshape(-1, x.shape[-1]).to(self.scale_F.dtype)
        largest_R1 = x_RD.abs().amax(-1, keepdim=True)  # 0 for a row of zeros: whatever it becomes is times 0
        rows_RD = (x_RD * (LARGEST / largest_R1)).round_().to(torch.int8)
        y_RF = _as_floats(torch._int_mm(rows_RD, self.weight_DF), x_RD.dtype).mul_(self.scale_F)
        if self.bias_F is None:
            y_RF.mul_(largest_R1)
        else:
            torch.addcmul(self.bias_F, y_RF, largest_R1, out=y_RF)
        if self.relu:
            y_RF.relu_()
        return y_RF.view(*x.shape[:-1], len(self.scale_F))


def _as_floats(sums_RF: Tensor, dtype: torch.dtype) -> Tensor:
    """The integers as numbers of this type; as fp32 in their own memory, element by element.

    For 256 × 8,000 on an EPYC: 0.15 ms, 0.44 in new memory; a product of integers and floats takes 1.7.
    """
    if dtype == torch.float32:
        return sums_RF.view(torch.float32).copy_(sums_RF)
    return sums_RF.to(dtype)


class Int8Linear(nn.Linear):
    """A layer's projection in 8 bits, for inference. It keeps the weights, from which quick forms make their own."""

    def __init__(self, linear: nn.Linear) -> None:
        nn.Module.__init__(self)
        self._forward_pre_hooks = linear._forward_pre_hooks  # of heads that a row changes
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight, self.bias = linear.weight, linear.bias
        self.product = Int8Product(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


@torch.no_grad()
def to_int8(network: nn.Module) -> None:
    """Let the products of a trained network be in 8 bits: all projections (nn.Linear), and the softmax's.

    The others stay as they are: scores and sums of attention, recurrent layers (torch's own), depthwise convolutions.
    """
    for module in list(network.modules()):
        if isinstance(module, Embedding):
            module.product = Int8Product(module.matrix[: module.vocab_size], None)
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, Int8Linear(child))


@functools.cache
def int8_works() -> bool:
    """Whether this torch's products of 8-bit matrices are the exact integers on this processor.

    Without VNNI or AMX oneDNN adds pairs of products in 16 bits, which saturate. One row, few rows and many rows have
    kernels of their own; odd sums beyond 2²⁴ would be rounded in fp32.
    """
    drawn = torch.Generator().manual_seed(0)
    for rows, inputs, outputs in ((1, 64, 8), (3, 2101, 5), (70, 130, 33)):
        x_RD, weight_FD = (
            torch.randint(-LARGEST, LARGEST + 1, (count, inputs), generator=drawn, dtype=torch.int8)
            for count in (rows, outputs)
        )
        x_RD[0], weight_FD[0], weight_FD[1] = LARGEST, LARGEST, -LARGEST
        try:
            product = torch._int_mm(x_RD, weight_FD.mT)
        except (AttributeError, NotImplementedError, RuntimeError):
            return False
        if not torch.equal(product.long(), x_RD.long() @ weight_FD.long().mT):
            return False
    return True


# --- Matrices in oneDNN's blocked layout, for the many small products of a search. Shapes: R rows, D inputs, F outputs
# oneDNN multiplies matrices in blocks that suit its kernels. For few rows, changing the layout at every call costs more
# than the product: 4 × 512 by 512 × 37,000 took 26 ms as F.linear, 8 ms packed, 2 ms packed in bf16 (one thread). torch
# has packing for its compiler only (torch.ops.mkldnn). Where it is missing or fails, F.linear computes the same.


# Matrices of at least so many elements gain from packing (fp32) or bf16: a packed call costs 10 µs more than F.linear.
PACK_FROM = 2**19
NARROW_FROM = 2**16
# A smaller matrix is kept in both layouts; calls with so many rows use the packed one: 8 % faster for 440 × 128 by
# 128 × 512.
PACK_BESIDE_FROM, MANY_ROWS = 2**15, 160


class Projection:
    """x W ᵀ + b, optionally with a ReLU; weights in `dtype`, or in a wider type where that is faster."""

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
            del self.weight_FD  # this copy would never be used

    def __call__(self, x_RD: Tensor) -> Tensor:
        """(R, D) → (R, F), in the weights' type."""
        if x_RD.dtype != self.dtype:
            x_RD = x_RD.to(self.dtype)
        if self.packed is not None and x_RD.shape[0] >= self.packed_from:
            return _packed_linear(x_RD, self.packed, self.bias_F, "relu" if self.relu else "none")
        y_RF = F.linear(x_RD, self.weight_FD, self.bias_F)
        return y_RF.relu_() if self.relu else y_RF


@functools.cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether this torch packs matrices of this type on this processor, with correct products."""
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
