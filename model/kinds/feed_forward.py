"""The position-wise feed-forward network: settings and costs (section 3.3)."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    from model.config import ModelConfig


class FeedForward(Kind):
    """Two matrices with an activation in between."""

    module: ClassVar[str] = "model.sublayers.feed_forward:FeedForward"
    reads: ClassVar[tuple[str, ...]] = ("d_ff", "activation_dropout", "bias")

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """T·2·D·d_ff products."""
        biases = config.d_ff + config.d_model if config.bias else 0
        params = 2 * config.d_model * config.d_ff + biases
        return Cost(params, 2 * length * 2 * config.d_model * config.d_ff, length * config.d_ff)
