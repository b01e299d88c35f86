"""Options and cost of a projection to another width. No torch."""

from typing import Any, ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class ProjectionSpec(Spec):
    """A matrix to another width, which the layers after it have; nothing surrounds it."""

    computation: ClassVar[str] = "model.layers.position_wise.projection:Projection"
    reads: ClassVar[tuple[str, ...]] = ("bias",)
    bare: ClassVar[bool] = True

    width: int = Field(ge=1)

    def implied(self) -> dict[str, Any]:
        """Return the new width, and that nothing surrounds the sub-layer."""
        return {"d_model": self.width, "dropout": 0.0, "norm": "none", "residual": False}

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·D·width products."""
        weights = (self.other_width or config.d_model) * self.width
        biases = self.width if config.bias else 0
        return Cost(weights + biases, 2 * length * weights, length * self.other_width)
