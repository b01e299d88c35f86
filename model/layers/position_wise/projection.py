"""A projection to another width. Shapes: B sentences, T positions, R rows of a search, D and D' the two widths."""

from torch import Tensor, nn

from model.layers.contract import Inputs, State, StepContext, Sublayer
from model.layers.position_wise.projection_spec import ProjectionSpec
from model.settings import ModelSettings


class Projection(Sublayer):
    """x W + b: (…, D) → (…, D'), the width of the layers after it."""

    def __init__(self, config: ModelSettings, options: ProjectionSpec) -> None:
        super().__init__()
        self.linear = nn.Linear(options.other_width, options.width, bias=config.bias)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D')."""
        output: Tensor = self.linear(x_BTD)
        return output

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D')."""
        output: Tensor = self.linear(x_RD)
        return output
