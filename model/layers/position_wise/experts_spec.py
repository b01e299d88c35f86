"""Options and cost of a mixture of experts. No torch."""

from typing import ClassVar, Literal

from pydantic import Field

from model.layers.position_wise.feed_forward_spec import FeedForwardSpec
from model.layers.spec import Cost, Length
from model.settings import ModelSettings, Side


class ExpertsSpec(FeedForwardSpec):
    """Several feed-forward networks in place of one, of which each position uses a few."""

    computation: ClassVar[str] = "model.layers.position_wise.experts:Experts"
    compiles: ClassVar[bool] = False  # how many positions an expert gets depends on the data

    count: int = Field(4, ge=1)
    active: int = Field(1, ge=1)  # experts that each position uses
    gate: Literal["softmax", "noisy_top_k"] = "softmax"
    importance: float = Field(0.0, ge=0)  # weight of the loss of unequal sums of gates
    load: float = Field(0.0, ge=0)  # weight of the loss of unequal numbers of positions
    capacity: float | None = Field(None, gt=0)  # of an expert in training, in equal shares; no limit if unset

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for more active experts than there are, and for a load loss without noise."""
        super().check(config, side)
        if self.active > self.count:
            raise ValueError(f"active={self.active} of count={self.count} experts: active may be at most count")
        if self.load and (self.gate != "noisy_top_k" or self.active == self.count):
            raise ValueError(
                f"load={self.load:g} needs the noise of gate=noisy_top_k, and fewer active experts than count: it is "
                "the loss of the chance to be chosen"
            )

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return `active` times one network, and T·D·count products of the router (twice that with noise)."""
        one = super().cost(config, length, memory, side)
        router = config.d_model * self.count
        if self.gate == "noisy_top_k":
            router *= 2
        # Of each position and expert: the network's input, what it keeps, its output; and the router's weights.
        kept = self.active * (one.kept + length * 2 * config.d_model) + length * self.count
        return Cost(
            params=self.count * one.params + router,
            flops=self.active * one.flops + 2 * length * router,
            kept=kept,
            active=self.active * one.params + router,
        )
