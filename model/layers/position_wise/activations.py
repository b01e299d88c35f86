"""Activations of the feed-forward network. Shapes: F d_ff.

relu      max(0, x), the paper's activation (equation 2)
gelu      x·Φ(x) (Hendrycks 2016, arXiv 1606.08415)
swish     x·σ(x) (Ramachandran 2017, arXiv 1710.05941)
relu2     max(0, x)² (So 2021, arXiv 2109.08668)
elu       x, or eˣ − 1 for x < 0 (Clevert 2015, arXiv 1511.07289)
selu      a scaled ELU (Klambauer 2017, arXiv 1706.02515)
sigmoid   σ(x) = 1 / (1 + e⁻ˣ)
softplus  ln(1 + eˣ)

The gated activations are g(x W) ⊗ x V with a third matrix V (Shazeer 2020, arXiv 2002.05202, equations 4 to 6).
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Activation = Callable[[Tensor], Tensor]


# Activations are functions, because torch.compile cannot trace a Tensor method stored in a module (torch 2.11).


def _relu(x_F: Tensor) -> Tensor:
    """Return ReLU(x) as a new tensor.

    The output of a matrix product is a view. If it were changed in place, the backward pass would copy it.
    """
    return x_F.relu()


def _sigmoid(x_F: Tensor) -> Tensor:
    return x_F.sigmoid()


def _relu2(x_F: Tensor) -> Tensor:
    return x_F.relu().square()


def _identity(x_F: Tensor) -> Tensor:
    return x_F


PLAIN: dict[str, Activation] = {
    "relu": _relu,
    "gelu": F.gelu,
    "swish": F.silu,
    "relu2": _relu2,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": _sigmoid,
    "softplus": F.softplus,
}
GATED: dict[str, Activation] = {
    "glu": _sigmoid,
    "bilinear": _identity,
    "reglu": _relu,
    "geglu": F.gelu,
    "swiglu": F.silu,
}
