"""Options and cost of the position-wise feed-forward network (section 3.3). Imports no torch."""

from typing import ClassVar

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side

# Number of values of width d_ff that the forward pass stores for each position: the input of W_2, the values that the
# activation needs for its gradient, and both factors of a gate.
_KEPT = {"relu": 1, "gelu": 2, "swish": 2, "relu2": 2, "elu": 2, "selu": 2, "sigmoid": 1, "softplus": 2}
_KEPT_GATED = {"glu": 3, "bilinear": 3, "reglu": 3, "geglu": 4, "swiglu": 4}


class FeedForwardSpec(Spec):
    """Cost of two matrices with an activation between them. A gated activation needs a third matrix."""

    computation: ClassVar[str] = "model.layers.position_wise.feed_forward:FeedForward"
    reads: ClassVar[tuple[str, ...]] = ("d_ff", "activation", "activation_dropout", "bias")

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·2·D·d_ff multiplications, or T·3·D·d_ff with a gate."""
        matrices = 3 if config.activation in _KEPT_GATED else 2
        biases = (matrices - 1) * config.d_ff + config.d_model if config.bias else 0
        weights = matrices * config.d_model * config.d_ff
        kept = (_KEPT | _KEPT_GATED)[config.activation]
        return Cost(weights + biases, 2 * length * weights, kept * length * config.d_ff)
