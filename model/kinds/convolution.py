"""Convolution over positions: settings and costs (one type of layer of Table 1)."""

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.config import ModelConfig


class Convolution(Kind):
    """A window of `kernel` inputs, `dilation` positions apart: up to the present one in decoders, else around it."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)

    kernel: int = Field(3, ge=1)
    gated: bool = False  # a gated linear unit on the output
    rectified: bool = False  # a ReLU on the output
    separable: bool = False  # each channel alone over positions, then a matrix over channels
    dilation: int = Field(1, ge=1)

    @property
    def reach(self) -> int:
        """Positions from a window's first input to its last."""
        return (self.kernel - 1) * self.dilation

    def check(self, config: "ModelConfig", side: Side) -> None:
        """An even kernel has no middle, and an output has one activation."""
        if self.gated and self.rectified:
            raise ValueError("gated=true and rectified=true: the output has a gated linear unit or a ReLU, take one")
        if side == "encoder" and self.kernel % 2 == 0:
            raise ValueError(
                f"kernel={self.kernel} has no middle, and in an encoder the window lies around its position: take an "
                f"odd one, such as kernel={self.kernel + 1}"
            )

    def sequential(self, length: int) -> int:
        """All positions at once."""
        return 1

    def operations(self, config: "ModelConfig", distances: "NDArray[np.int64]", side: Side) -> "NDArray[np.float64]":
        """One, to the inputs of the window."""
        import numpy as np

        before = distances + (self.reach // 2 if side == "encoder" else 0)  # from the window's last input
        return np.where((before >= 0) & (before <= self.reach) & (before % self.dilation == 0), 1.0, np.inf)

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """T·k·D·D' products, separable T·(k·D + D·D'), with D' = 2·D if gated."""
        width = config.d_model
        output = 2 * width if self.gated else width
        weights = width * self.kernel + width * output if self.separable else self.kernel * width * output
        kept = width * (1 if self.separable else self.kernel) + (output if self.gated else 0)
        kept += width if self.rectified else 0
        return Cost(weights + (output if config.bias else 0), 2 * length * weights, length * kept)
