"""A mixture of experts: settings and costs."""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from model.kinds.feed_forward import FeedForward
from model.kinds.kind import Cost, Length, Side

if TYPE_CHECKING:
    from model.config import ModelConfig


class Experts(FeedForward):
    """Several feed-forward networks, of which each position uses a few, in place of one."""

    compiles: ClassVar[bool] = False  # how many positions an expert gets depends on the data

    count: int = Field(4, ge=1)
    active: int = Field(1, ge=1)  # experts of one position
    gate: Literal["softmax", "noisy_top_k"] = "softmax"
    importance: float = Field(0.0, ge=0)  # weight of the loss of unequal sums of gates
    load: float = Field(0.0, ge=0)  # weight of the loss of unequal numbers of positions
    capacity: float | None = Field(None, gt=0)  # of an expert in training, in equal shares; no limit if unset

    def check(self, config: "ModelConfig", side: Side) -> None:
        """A position cannot have more experts than there are."""
        super().check(config, side)
        if self.active > self.count:
            raise ValueError(f"active={self.active} of count={self.count} experts: active may be at most count")
        if self.load and (self.gate != "noisy_top_k" or self.active == self.count):
            raise ValueError(
                f"load={self.load:g} needs the noise of gate=noisy_top_k, and fewer active experts than count: it is "
                "the loss of the chance to be chosen"
            )

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """`active` times that of one network, and T·D·count products of the router, twice that with noise."""
        one = super().cost(config, length, memory, side)
        router = config.d_model * self.count * (2 if self.gate == "noisy_top_k" else 1)
        # Of each position and expert: the network's input, what it keeps, its output; and the router's weights.
        kept = self.active * (one.kept + length * 2 * config.d_model) + length * self.count
        return Cost(
            params=self.count * one.params + router,
            flops=self.active * one.flops + 2 * length * router,
            kept=kept,
            active=self.active * one.params + router,
        )
