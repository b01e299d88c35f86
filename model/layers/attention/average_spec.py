"""Options and cost of average attention. Imports no torch."""

import math
from typing import ClassVar

from model.layers.position_wise.feed_forward_spec import FeedForwardSpec
from model.layers.spec import Cost, Length
from model.settings import ModelSettings, Side


class AverageSpec(FeedForwardSpec):
    """The average of all positions so far, which replaces a decoder's self-attention.

    The feed-forward network and the gates are optional.
    """

    computation: ClassVar[str] = "model.layers.attention.average:Average"
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)

    feed_forward: bool = True
    gated: bool = True

    def reads_here(self, config: ModelSettings) -> tuple[str, ...]:
        """Return the settings of the feed-forward network and of the gates, if the options enable these."""
        if self.feed_forward:
            return super().reads_here(config)  # contains "bias", which the gates also read
        return ("bias",) if self.gated else ()

    def sequential(self, length: int) -> int:
        """Return 1, because training computes all averages with one cumulative sum."""
        return 1

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return 1 for the position itself and for every earlier position, and inf for later positions."""
        return 1.0 if distance >= 0 else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost of the feed-forward network and of the gates, which take T·(2·D)² multiplications."""
        total = Cost(params=0, flops=0, kept=0)
        if self.feed_forward:
            network = super().cost(config, length, memory, side)
            total = network._replace(kept=network.kept + length * config.d_model)  # plus the network's input
        if self.gated:
            wide = 2 * config.d_model
            biases = wide if config.bias else 0
            total = Cost(
                params=total.params + wide**2 + biases,
                flops=total.flops + 2 * length * wide**2,
                kept=total.kept + length * 2 * wide,  # the gates' input and the gates
            )
        return total
