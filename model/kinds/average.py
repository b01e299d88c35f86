"""The average of all positions so far: settings and costs."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.feed_forward import FeedForward
from model.kinds.kind import Cost, Length, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.config import ModelConfig


class Average(FeedForward):
    """Average attention, in place of a decoder's self-attention. Each of its two parts can be left out."""

    reads: ClassVar[tuple[str, ...]] = tuple(dict.fromkeys((*FeedForward.reads, "bias")))
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)

    feed_forward: bool = True
    gated: bool = True

    def reads_here(self, config: "ModelConfig") -> tuple[str, ...]:
        """Without the network and the gates there is nothing to set."""
        inner = super().reads_here(config) if self.feed_forward else ()
        return tuple(dict.fromkeys((*inner, *(("bias",) if self.gated else ()))))

    def sequential(self, length: int) -> int:
        """A cumulative sum is one operation in training."""
        return 1

    def operations(self, config: "ModelConfig", distances: "NDArray[np.int64]", side: Side) -> "NDArray[np.float64]":
        """One, to every position so far."""
        import numpy as np

        return np.where(distances >= 0, 1.0, np.inf)

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """The feed-forward network, and T·(2·D)² products of the gates."""
        params, flops, kept, _ = super().cost(config, length, memory, side) if self.feed_forward else Cost(0, 0, 0)
        wide = 2 * config.d_model
        if self.feed_forward:
            kept = kept + length * config.d_model  # the average, its input
        if self.gated:
            params += wide**2 + (wide if config.bias else 0)
            flops = flops + 2 * length * wide**2
            kept = kept + length * 2 * wide  # the gates' input and the gates
        return Cost(params, flops, kept)
