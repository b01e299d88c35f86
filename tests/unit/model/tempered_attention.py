"""A kind of sub-layer as another package would add it, with options, cost and computation in one file.

Self-attention whose heads learn how sharp their softmax is: each head's scores are multiplied by a trained factor.

Shapes: B sentences, H heads, T positions, K d_k, V d_v.
"""

from functools import cache
from typing import TYPE_CHECKING

from pydantic import Field

from model.layers.attention.attention_spec import SelfAttentionSpec
from model.layers.spec import Cost, Length
from model.settings import ModelSettings, Side

if TYPE_CHECKING:
    from model.layers.contract import Sublayer


class TemperedAttentionSpec(SelfAttentionSpec):
    """Self-attention with a trained factor on the scores of each head."""

    factor: float = Field(1.0, gt=0)  # before training

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError as self-attention does, or if the score is not proportional to the query."""
        super().check(config, side)
        if config.compatibility == "additive":
            raise ValueError("the score of compatibility=additive is not proportional to the query")

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost of self-attention, a weight for each head, and the queries before the factor."""
        cost = super().cost(config, length, memory, side)
        kept = cost.kept + length * config.num_heads * config.d_k
        return cost._replace(params=cost.params + config.num_heads, kept=kept)

    def build(self, config: ModelSettings) -> "Sublayer":
        """Return the computation."""
        return _computation()(config, self)


@cache
def _computation() -> "type[Sublayer]":
    """Return the class that computes the layer. It imports torch here, so that planning does not need torch."""
    import torch
    from torch import Tensor, nn

    from model.layers.attention.multi_head import SelfAttention

    class TemperedAttention(SelfAttention):
        def __init__(self, config: ModelSettings, options: TemperedAttentionSpec) -> None:
            super().__init__(config, options)
            self.first_factor = options.factor
            self.factor_H11 = nn.Parameter(torch.empty(config.num_heads, 1, 1))

        def initialise(self) -> None:
            super().initialise()
            nn.init.constant_(self.factor_H11, self.first_factor)

        def project(self, x_BTD: Tensor, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
            q_BHTK, k_BGTK, v_BGTV = super().project(x_BTD, first, last)
            return q_BHTK * self.factor_H11, k_BGTK, v_BGTV

    return TemperedAttention
