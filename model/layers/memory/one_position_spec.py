"""Options and cost of sub-layers that read one position of the encoder's output, in place of attention. No torch."""

from typing import ClassVar

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class OnePositionSpec(Spec):
    """Base of the two layers that read one source position: the output depends on the encoder's output alone."""

    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError if the input, which passes by the residual connection alone, would be cut off."""
        if not config.residual:
            raise ValueError("it reads only the source, so residual = false would discard the sub-layers before it")
        if config.norm in ("pre", "sandwich"):
            raise ValueError(
                f'it reads only the source, so norm = "{config.norm}" has no input to normalise: write (norm=none)'
            )


class LastStateSpec(OnePositionSpec):
    """The last position, the same for every target position: a context of fixed size."""

    computation: ClassVar[str] = "model.layers.memory.one_position:LastState"

    backward: bool = False  # the first position, the last one that an encoder of lstm(backward=true) computes

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: D² products, once for the sentence."""
        weights = config.d_model**2
        return Cost(weights, 2 * weights, config.d_model)


class SamePositionSpec(OnePositionSpec):
    """The position that has the target position's own index."""

    computation: ClassVar[str] = "model.layers.memory.one_position:SamePosition"

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: S·D² products."""
        weights = config.d_model**2
        return Cost(weights, 2 * memory * weights, memory * config.d_model)
