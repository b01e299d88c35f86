"""One position of the encoder's output as a sub-layer of the decoder, in place of attention: settings and costs."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    from model.config import ModelConfig


class _OnePosition(Kind):
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    def check(self, config: "ModelConfig", side: Side) -> None:
        """Its output does not depend on its input, which passes by the residual connection alone."""
        if not config.residual:
            raise ValueError("it reads the source alone, so residual = false would cut off what stands before it")
        if config.norm in ("pre", "sandwich"):
            raise ValueError(
                f'it reads the source alone, so norm = "{config.norm}" has no input to normalise: write (norm=none)'
            )


class LastState(_OnePosition):
    """The last position, the same for every target position: a context of fixed size."""

    backward: bool = False  # the first position, the last one that an encoder of lstm(backward=true) computes

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """D² products, once for the sentence."""
        weights = config.d_model**2
        return Cost(weights, 2 * weights, config.d_model)


class SamePosition(_OnePosition):
    """The position that has the target position's own index."""

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """S·D² products."""
        weights = config.d_model**2
        return Cost(weights, 2 * memory * weights, memory * config.d_model)
