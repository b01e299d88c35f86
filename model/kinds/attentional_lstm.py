"""An LSTM that reads its own attention of the step before: settings and costs."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.config import ModelConfig


class AttentionalLSTM(Kind):
    """Luong's decoder with input feeding. `compatibility`: dot, bilinear ("general"), additive ("concat")."""

    reads: ClassVar[tuple[str, ...]] = ("compatibility", "bias")
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True
    compiles: ClassVar[bool] = False  # a loop over positions: as many graphs as lengths

    def sequential(self, length: int) -> int:
        """One step for each position."""
        return length

    def operations(self, config: "ModelConfig", distances: "NDArray[np.int64]", side: Side) -> "NDArray[np.float64]":
        """One step for each position from the input to the output."""
        import numpy as np

        return np.where(distances >= 0, distances + 1.0, np.inf)

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """12·D² products of the gates, 2·D² of the output, for each position; 2·D for each pair of the attention."""
        width = config.d_model
        square = width**2
        score = {"bilinear": (square, 0, 0), "additive": (square, square, width)}.get(config.compatibility, (0, 0, 0))
        weights = 14 * square + (4 * width if config.bias else 0) + sum(score)
        products = length * (14 * square + score[0]) + memory * score[1] + 2 * width * length * memory
        # of each position: gates, two states, the tanh of one, two inputs of the output, the output; and its weights
        kept = length * 10 * width + length * memory
        if config.compatibility == "additive":
            kept = kept + length * width * memory + memory * width
        return Cost(weights, 2 * products, kept)

    def fused(self, config: "ModelConfig") -> bool:
        return False
