"""The position-wise feed-forward network (section 3.3) and its activations.

Shapes: B sentences, T positions, D d_model, F d_ff.
"""

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.contract import Inputs, State, StepContext, Sublayer
from model.parts.dropout import Dropout
from model.settings import ModelSettings
from model.specs import Spec


class FeedForward(Sublayer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2), the same at each position.

    Other activations than ReLU: `PLAIN`, and `GATED`, which multiply by x V + c before W_2.
    """

    def __init__(self, config: ModelSettings, options: Spec) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = GATED.get(config.activation) or PLAIN[config.activation]
        self.value = nn.Linear(config.d_model, config.d_ff, bias=config.bias) if config.activation in GATED else None
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        return self._apply_to(x_BTD)

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D)."""
        return self._apply_to(x_RD)

    def _apply_to(self, x_D: Tensor) -> Tensor:
        inner_F = self.activation(self.inner(x_D))
        if self.value is not None:
            inner_F = inner_F * self.value(x_D)
        output_D: Tensor = self.outer(self.dropout(inner_F))
        return output_D


# --- Activations
# relu is the paper's (equation 2); gelu is x·Φ(x) (Hendrycks 2016, arXiv 1606.08415); swish x·σ(x) (Ramachandran 2017,
# arXiv 1710.05941); relu2 max(0, x)² (So 2021, arXiv 2109.08668); elu x or eˣ − 1 below 0 (Clevert 2015, arXiv
# 1511.07289); selu a scaled ELU (Klambauer 2017, arXiv 1706.02515); softplus ln(1 + eˣ). The gated forms are g(x W) ⊗ x
# V with a third matrix V (Shazeer 2020, arXiv 2002.05202, equations 4 to 6).


Activation = Callable[[Tensor], Tensor]


def _relu2(x_F: Tensor) -> Tensor:
    return x_F.relu().square()


def _identity(x_F: Tensor) -> Tensor:
    return x_F


PLAIN: dict[str, Activation] = {
    "relu": Tensor.relu_,
    "gelu": F.gelu,
    "swish": F.silu,
    "relu2": _relu2,
    "elu": F.elu,
    "selu": F.selu,
    "sigmoid": Tensor.sigmoid,
    "softplus": F.softplus,
}
GATED: dict[str, Activation] = {
    "glu": Tensor.sigmoid,
    "bilinear": _identity,
    "reglu": Tensor.relu_,
    "geglu": F.gelu,
    "swiglu": F.silu,
}
