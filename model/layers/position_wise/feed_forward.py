"""The position-wise feed-forward network (section 3.3).

Shapes: B sentences, T positions, R rows of a search, D d_model, F d_ff.
"""

from torch import Tensor, nn

from model.layers.contract import Inputs, State, StepContext, Sublayer
from model.layers.position_wise.activations import GATED, PLAIN
from model.layers.spec import Spec
from model.parts.dropout import Dropout
from model.settings import ModelSettings


class FeedForward(Sublayer):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2), the same at each position.

    activations.py defines the other activations. The result of an activation in `GATED` is multiplied by x V + c before
    the product with W_2.
    """

    def __init__(self, config: ModelSettings, options: Spec) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff, bias=config.bias)
        self.outer = nn.Linear(config.d_ff, config.d_model, bias=config.bias)
        self.activation = GATED.get(config.activation) or PLAIN[config.activation]
        self.value = nn.Linear(config.d_model, config.d_ff, bias=config.bias) if config.activation in GATED else None
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        return self._apply_to(x_BTD)

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        return self._apply_to(x_RD)

    def _apply_to(self, x_D: Tensor) -> Tensor:
        inner_F = self.activation(self.inner(x_D))
        if self.value is not None:
            inner_F = inner_F * self.value(x_D)
        output_D: Tensor = self.outer(self.dropout(inner_F))
        return output_D
