"""The position-wise feed-forward network: settings and costs (section 3.3)."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    from model.config import ModelConfig


# Values of d_ff that are kept: the operand of W_2, what the activation needs, both factors of a gate.
_KEPT = {"relu": 1, "gelu": 2, "swish": 2, "relu2": 2, "elu": 2, "selu": 2, "sigmoid": 1, "softplus": 2}
_KEPT_GATED = {"glu": 3, "bilinear": 3, "reglu": 3, "geglu": 4, "swiglu": 4}


class FeedForward(Kind):
    """Two matrices with an activation in between; three for a gated one."""

    reads: ClassVar[tuple[str, ...]] = ("d_ff", "activation", "activation_dropout", "bias")

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """T·2·D·d_ff products; T·3·D·d_ff with a gate."""
        matrices = 3 if config.activation in _KEPT_GATED else 2
        biases = (matrices - 1) * config.d_ff + config.d_model if config.bias else 0
        weights = matrices * config.d_model * config.d_ff
        kept = {**_KEPT, **_KEPT_GATED}[config.activation]
        return Cost(weights + biases, 2 * length * weights, kept * length * config.d_ff)
