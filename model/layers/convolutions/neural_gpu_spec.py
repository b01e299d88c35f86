"""Options and cost of the Extended Neural GPU, which applies a gated convolution repeatedly. Imports no torch."""

import math
from typing import ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class NeuralGPUSpec(Spec):
    """A unit of gated convolutions, applied repeatedly.

    A decoder applies the unit once for each word piece. An encoder applies it `steps` times, or once for each word
    piece if `steps` is unset.
    """

    computation: ClassVar[str] = "model.layers.convolutions.neural_gpu:NeuralGPU"
    reads: ClassVar[tuple[str, ...]] = ("bias",)
    compiles: ClassVar[bool] = False  # torch.compile would make one graph for each length, because it unrolls the loop

    kernel: int = Field(3, ge=1)
    steps: int | None = Field(None, ge=1)

    @property
    def reads_memory(self) -> bool:  # type: ignore[override]
        """True in decoders, which start with the encoder's output."""
        return self.side == "decoder"

    @property
    def reach(self) -> int:
        """The number of positions on either side that one application reads.

        This number is the sum of two half-windows: the candidate reads r in a window, and r reads s in a window.
        """
        return 2 * (self.kernel // 2)

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for an even kernel, and for a decoder with `steps`."""
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} has no middle: take an odd one, such as kernel={self.kernel + 1}")
        if self.steps is not None and side == "decoder":
            raise ValueError("steps is read in an encoder alone: a decoder applies its unit once for each piece")

    def sequential(self, length: int) -> int:
        """Return the number of applications of the unit: `steps`, or one for each position if `steps` is unset."""
        return self.steps or length

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return the number of applications that are needed to move a signal by `distance` positions.

        During the other applications, the gate g keeps the signal unchanged.
        """
        if side == "decoder" and distance < 0:
            return math.inf
        if self.reach:
            needed = max(1, math.ceil(abs(distance) / self.reach))
        elif distance == 0:
            needed = 1
        else:
            return math.inf
        if self.steps is not None and needed > self.steps:
            return math.inf
        return float(needed)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: 3·k·D² multiplications for each place and application.

        A decoder takes 6·k·D², because it also reads a tape. A decoder has T·(1 + reach) places.
        """
        width = config.d_model
        if side == "decoder":
            convolutions, windows = 6, 3
            applied = length**2 * (1 + self.reach)  # places × applications
        else:
            convolutions, windows = 3, 2
            applied = length * (self.steps or length)
        weights = convolutions * self.kernel * width**2
        # Stored for each place: windows of s and r ⊙ s, in decoders also of p, both gates, the candidate, r ⊙ s and s.
        kept = applied * width * (windows * self.kernel + 6)
        biases = 3 * width if config.bias else 0
        return Cost(weights + biases, 2 * applied * weights, kept)
