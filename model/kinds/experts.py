"""A mixture of experts: settings and costs."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from model.kinds.feed_forward import FeedForward
from model.kinds.kind import Cost, Length, Side

if TYPE_CHECKING:
    from model.config import ModelConfig


class Experts(FeedForward):
    """Several feed-forward networks, of which each position uses a few, in place of one."""

    module: ClassVar[str] = "model.sublayers.experts:Experts"
    compiles: ClassVar[bool] = False  # how many positions an expert gets depends on the data

    count: int = Field(4, ge=1)
    active: int = Field(1, ge=1)  # experts of one position

    def check(self, config: "ModelConfig", side: Side) -> None:
        """A position cannot have more experts than there are."""
        super().check(config, side)
        if self.active > self.count:
            raise ValueError(f"active={self.active} of count={self.count} experts: active may be at most count")

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """`active` times that of one network, and T·D·count products of the router."""
        one = super().cost(config, length, memory, side)
        router = config.d_model * self.count
        # Of each position and expert: the network's input, what it keeps, its output; and the router's weights.
        kept = self.active * (one.kept + length * 2 * config.d_model) + length * self.count
        return Cost(
            params=self.count * one.params + router,
            flops=self.active * one.flops + 2 * length * router,
            kept=kept,
            active=self.active * one.params + router,
        )
