"""The position-wise feed-forward network (section 3.3), its activations, and average attention, which ends in one.

Shapes: B sentences, T positions, K beams, R = B·K rows of a search, D d_model, F d_ff.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.contract import Inputs, State, StepContext, Sublayer
from model.parts.dropout import Dropout
from model.settings import ModelSettings
from model.specs import AverageSpec, ProjectionSpec, Spec


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


class Projection(Sublayer):
    """x W + b: (…, D) → (…, D'), the width of the layers after it."""

    def __init__(self, config: ModelSettings, options: ProjectionSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(options.other_width, options.width, bias=config.bias)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D')."""
        output: Tensor = self.linear(x_BTD)
        return output

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D')."""
        output: Tensor = self.linear(x_RD)
        return output


# --- Activations
# relu is the paper's (equation 2); gelu is x·Φ(x) (Hendrycks 2016, arXiv 1606.08415); swish x·σ(x) (Ramachandran 2017,
# arXiv 1710.05941); relu2 max(0, x)² (So 2021, arXiv 2109.08668); elu x or eˣ − 1 below 0 (Clevert 2015, arXiv
# 1511.07289); selu a scaled ELU (Klambauer 2017, arXiv 1706.02515); softplus ln(1 + eˣ). The gated forms are g(x W) ⊗ x
# V with a third matrix V (Shazeer 2020, arXiv 2002.05202, equations 4 to 6).


Activation = Callable[[Tensor], Tensor]


# Functions, because torch's compiler could not trace a method of Tensor as an attribute of a module (torch 2.11).


def _relu(x_F: Tensor) -> Tensor:
    """Not in place: a product's output is a view, and the backward pass of a change of it copies the activation."""
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


# --- Average attention


class Average(Sublayer):
    """g_t = FFN(1/t Σ_{k ≤ t} y_k), then its gating layer: i_t ⊙ y_t + f_t ⊙ g_t with i_t, f_t = σ(W [y_t; g_t]).

    Zhang et al. 2018, "Accelerating Neural Transformer via an Average Attention Network" (ACL P18-1166), section 3.1. A
    search keeps one sum per beam.
    """

    def __init__(self, config: ModelSettings, options: AverageSpec) -> None:
        super().__init__()
        width = config.d_model
        self.feed_forward = FeedForward(config, options) if options.feed_forward else None
        self.gates = nn.Linear(2 * width, 2 * width, bias=config.bias) if options.gated else None

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        count_T1 = torch.arange(1, x_BTD.shape[1] + 1, device=x_BTD.device).unsqueeze(-1)
        g_BTD = x_BTD.cumsum(1) / count_T1
        if self.feed_forward is not None:
            g_BTD = self.feed_forward(g_BTD, inputs)
        return self._gated(x_BTD, g_BTD)

    def _gated(self, x_D: Tensor, g_D: Tensor) -> Tensor:
        if self.gates is None:
            return g_D
        input_D, forget_D = self.gates(torch.cat([x_D, g_D], -1)).sigmoid().chunk(2, -1)
        output_D: Tensor = input_D * x_D + forget_D * g_D
        return output_D

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D); the state is the sum of the inputs so far, (B, K, D)."""
        sum_RD = x_RD + state.of_parents("sum", now) if now.time else x_RD
        state.put({"sum": sum_RD.view(-1, now.beam_size, sum_RD.shape[-1])})
        g_RD = sum_RD / (now.time + 1)
        if self.feed_forward is not None:
            g_RD = self.feed_forward.step(g_RD, state, now)
        return self._gated(x_RD, g_RD)
