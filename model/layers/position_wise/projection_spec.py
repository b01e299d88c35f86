"""Options and cost of a projection to another width. Imports no torch."""

from typing import Any, ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class ProjectionSpec(Spec):
    """Options and cost of a matrix that changes the width for the layers after it.

    This sub-layer has no dropout, norm or residual connection.
    """

    computation: ClassVar[str] = "model.layers.position_wise.projection:Projection"
    reads: ClassVar[tuple[str, ...]] = ("bias",)
    bare: ClassVar[bool] = True

    width: int = Field(ge=1)

    def implied(self) -> dict[str, Any]:
        """Return the new width, and the values that disable dropout, norm and residual connection."""
        return {"d_model": self.width, "dropout": 0.0, "norm": "none", "residual": False}

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·D·width multiplications."""
        weights = (self.other_width or config.d_model) * self.width
        biases = self.width if config.bias else 0
        return Cost(weights + biases, 2 * length * weights, length * self.other_width)
