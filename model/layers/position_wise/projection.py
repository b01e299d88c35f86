"""A projection to another width. Shapes: B sentences, T positions, R rows of a search, D and D' the two widths."""

from torch import Tensor, nn

from model.layers.contract import Inputs, State, StepContext, Sublayer
from model.layers.position_wise.projection_spec import ProjectionSpec
from model.settings import ModelSettings


class Projection(Sublayer):
    """x W + b: (…, D) → (…, D'). D' is the width of the layers after the projection."""

    def __init__(self, config: ModelSettings, options: ProjectionSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(options.other_width, options.width, bias=config.bias)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D')."""
        output: Tensor = self.linear(x_BTD)
        return output

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D')."""
        output: Tensor = self.linear(x_RD)
        return output
