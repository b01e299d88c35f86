"""Products in 8 bits on a processor: weights with one scale an output, activations with one scale a row.

A row x of D numbers becomes q = round(127 x / m), m its largest magnitude, and each row of W likewise, once. The
integer product is exact in 32 bits, so a row's result does not depend on the rows beside it; with one scale for all
rows it would. Scaled back, m s (q W_qᵀ) + b is about x Wᵀ + b: the dynamic quantisation of Jacob et al. 2018
(arXiv 1712.05877) without zero points.

`torch._int_mm` is oneDNN's product. torch's other products in 8 bits have one scale for all rows
(quantized.linear_dynamic, whose tensors are deprecated), need the same work around them and 20 µs more a call
(onednn.qlinear_pointwise), or keep activations in bf16 and are slower than fp32 from 16 rows on (_weight_int8pack_mm).

Shapes: R rows, D inputs, F outputs.
"""

import functools

import torch
from torch import Tensor, nn

from model.parts.embedding import Embedding

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
            found = torch._int_mm(x_RD, weight_FD.mT)
        except (AttributeError, NotImplementedError, RuntimeError):
            return False
        if not torch.equal(found.long(), x_RD.long() @ weight_FD.long().mT):
            return False
    return True
