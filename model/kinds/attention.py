"""Self-attention and cross-attention: settings and costs (section 3.2)."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.config import ModelConfig


class _Attention(Kind):
    reads: ClassVar[tuple[str, ...]] = ("num_heads", "d_k", "d_v", "attention_dropout")

    def _params(self, config: "ModelConfig") -> int:
        """Of the four projections with their biases."""
        d_model, heads = config.d_model, config.num_heads
        projections = heads * (2 * config.d_k + config.d_v)
        return d_model * projections + projections + heads * config.d_v * d_model + d_model


class SelfAttention(_Attention):
    """Queries, keys and values from the same sequence."""

    module: ClassVar[str] = "model.sublayers.attention:SelfAttention"

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """T·D·h·(2·d_k + 2·d_v) + h·(d_k + d_v)·T² products. T² is counted whole: most causal kernels compute it."""
        queries, values = config.num_heads * config.d_k, config.num_heads * config.d_v
        products = length * config.d_model * (2 * queries + 2 * values) + (queries + values) * length**2
        # q, k, v, their average, and the weights
        kept = length * 2 * (queries + values) + config.num_heads * length**2
        return Cost(self._params(config), 2 * products, kept)

    def sequential(self, length: int) -> int:
        """All positions at once."""
        return 1

    def operations(self, config: "ModelConfig", distances: "NDArray[np.int64]", side: Side) -> "NDArray[np.float64]":
        """One, to every position of the window."""
        import numpy as np

        reach = len(distances) if config.window is None else config.window // 2
        return np.where(np.abs(distances) <= reach, 1.0, np.inf)


class CrossAttention(_Attention):
    """Queries from the decoder, keys and values from the encoder's output."""

    module: ClassVar[str] = "model.sublayers.attention:CrossAttention"
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """(T + S)·D·h·(d_k + d_v) + h·(d_k + d_v)·T·S products."""
        widths = config.num_heads * (config.d_k + config.d_v)
        products = (length + memory) * config.d_model * widths + widths * length * memory
        # q and the average of the target, k and v of the source, and the weights
        kept = (length + memory) * widths + config.num_heads * length * memory
        return Cost(self._params(config), 2 * products, kept)
