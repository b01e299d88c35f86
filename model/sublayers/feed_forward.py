"""The position-wise feed-forward network (section 3.3). Shapes: B sentences, T positions, D d_model, F d_ff."""

from torch import Tensor, nn

from model.config import ModelConfig
from model.parts.dropout import Dropout


class FeedForward(nn.Module):
    """FFN(x) = max(0, x W_1 + b_1) W_2 + b_2 (equation 2), the same at each position."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.d_model, config.d_ff)
        self.outer = nn.Linear(config.d_ff, config.d_model)
        self.dropout = Dropout(config.activation_dropout)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        inner_BTF = self.inner(x_BTD).relu_()
        output_BTD: Tensor = self.outer(self.dropout(inner_BTF))
        return output_BTD
