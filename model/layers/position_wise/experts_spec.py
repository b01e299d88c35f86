"""Options and cost of a mixture of experts. Imports no torch."""

from typing import ClassVar, Literal

from pydantic import Field

from model.layers.position_wise.feed_forward_spec import FeedForwardSpec
from model.layers.spec import Cost, Length
from model.settings import ModelSettings, Side


class ExpertsSpec(FeedForwardSpec):
    """Options and cost of several feed-forward networks in parallel. Each position uses only some of them."""

    computation: ClassVar[str] = "model.layers.position_wise.experts:Experts"
    compiles: ClassVar[bool] = False  # the number of positions per expert depends on the data

    count: int = Field(4, ge=1)
    active: int = Field(1, ge=1)  # number of experts that each position uses
    gate: Literal["softmax", "noisy_top_k"] = "softmax"
    importance: float = Field(0.0, ge=0)  # weight of the loss for unequal sums of gates
    load: float = Field(0.0, ge=0)  # weight of the loss for unequal numbers of positions
    capacity: float | None = Field(None, gt=0)  # positions per expert in training, as a multiple of an equal share

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for active > count, and for a `load` loss without noise or with active = count."""
        super().check(config, side)
        if self.active > self.count:
            raise ValueError(f"active={self.active} of count={self.count} experts: active may be at most count")
        if self.load and (self.gate != "noisy_top_k" or self.active == self.count):
            raise ValueError(
                f"load={self.load:g} needs the noise of gate=noisy_top_k, and fewer active experts than count: it is "
                "the loss of the chance to be chosen"
            )

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: `active` feed-forward networks, and T·D·count multiplications for the router.

        With noise, the router takes T·2·D·count multiplications.
        """
        one = super().cost(config, length, memory, side)
        router = config.d_model * self.count
        if self.gate == "noisy_top_k":
            router *= 2
        # Stored: input, stored values and output of each active network; the router's gates for each position.
        kept = self.active * (one.kept + length * 2 * config.d_model) + length * self.count
        return Cost(
            params=self.count * one.params + router,
            flops=self.active * one.flops + 2 * length * router,
            kept=kept,
            active=self.active * one.params + router,
        )
