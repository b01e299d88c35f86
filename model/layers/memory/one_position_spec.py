"""Options and cost of the sub-layers that read one position of the encoder's output. Imports no torch."""

from typing import ClassVar

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class OnePositionSpec(Spec):
    """Base class of the two sub-layers that read one source position. Their output does not depend on their input x."""

    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for residual = false, which would discard the input, and for a norm on the input."""
        if not config.residual:
            raise ValueError("it reads only the source, so residual = false would discard the sub-layers before it")
        if config.norm in ("pre", "sandwich"):
            raise ValueError(
                f'it reads only the source, so norm = "{config.norm}" has no input to normalise: write (norm=none)'
            )


class LastStateSpec(OnePositionSpec):
    """Options and cost of reading the last source position, a context of fixed size, at every target position."""

    computation: ClassVar[str] = "model.layers.memory.one_position:LastState"

    backward: bool = False  # read the first position, which an encoder of lstm(backward=true) computes last

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: D² multiplications, once per sentence."""
        weights = config.d_model**2
        return Cost(weights, 2 * weights, config.d_model)


class SamePositionSpec(OnePositionSpec):
    """Cost of reading the source position with the same index as the target position."""

    computation: ClassVar[str] = "model.layers.memory.one_position:SamePosition"

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: S·D² multiplications."""
        weights = config.d_model**2
        return Cost(weights, 2 * memory * weights, memory * config.d_model)
