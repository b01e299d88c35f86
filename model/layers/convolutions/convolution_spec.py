"""Options and cost of a convolution over positions, a layer type of Table 1. Imports no torch."""

import math
from typing import ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class ConvolutionSpec(Spec):
    """A convolution over a window of `kernel` inputs, `dilation` positions apart.

    In decoders the window ends at the present position. In encoders it is centred on the present position.
    """

    computation: ClassVar[str] = "model.layers.convolutions.convolution:Convolution"
    reads: ClassVar[tuple[str, ...]] = ("bias",)

    kernel: int = Field(3, ge=1)
    gated: bool = False  # a gated linear unit on the output
    rectified: bool = False  # a ReLU on the output
    separable: bool = False  # convolve each channel separately over positions, then multiply by a matrix over channels
    dilation: int = Field(1, ge=1)

    @property
    def reach(self) -> int:
        """The distance in positions from the first to the last input of a window."""
        return (self.kernel - 1) * self.dilation

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for two activations, and for an even kernel in an encoder."""
        if self.gated and self.rectified:
            raise ValueError(
                "gated=true and rectified=true: the output has either a gated linear unit or a ReLU: choose one"
            )
        if side == "encoder" and self.kernel % 2 == 0:
            raise ValueError(
                f"kernel={self.kernel} has no middle, and in an encoder the window lies around its position: take an "
                f"odd one, such as kernel={self.kernel + 1}"
            )

    def sequential(self, length: int) -> int:
        """Return 1: all positions are computed at once."""
        return 1

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return 1 for an input in the window, and inf for other inputs."""
        from_last = distance + (self.reach // 2 if side == "encoder" else 0)  # distance from the window's last input
        return 1.0 if 0 <= from_last <= self.reach and from_last % self.dilation == 0 else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·k·D·D' multiplications, or T·(k·D + D·D') if separable. D' is 2·D if gated, else D."""
        width = config.d_model
        output = 2 * width if self.gated else width
        if self.separable:
            weights = width * self.kernel + width * output
            kept = width
        else:
            weights = self.kernel * width * output
            kept = width * self.kernel
        if self.gated:
            kept += output
        if self.rectified:
            kept += width
        biases = output if config.bias else 0
        return Cost(weights + biases, 2 * length * weights, length * kept)
