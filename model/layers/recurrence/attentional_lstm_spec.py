"""Options and cost of an LSTM with attention and input feeding. Imports no torch."""

from typing import ClassVar

from model.layers.recurrence.recurrent_spec import OneByOneSpec
from model.layers.spec import Cost, Length
from model.settings import ModelSettings, Side


class AttentionalLSTMSpec(OneByOneSpec):
    """Options and cost of Luong's decoder with input feeding. The setting `compatibility` selects the score."""

    computation: ClassVar[str] = "model.layers.recurrence.attentional_lstm:AttentionalLSTM"
    reads: ClassVar[tuple[str, ...]] = ("compatibility", "bias")
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True
    attends: ClassVar[bool] = True

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost.

        The multiplications per position are 12·D² for the gates and 2·D² for the output. Each pair of a position and a
        memory position takes 2·D. A bilinear score adds D² per position. An additive score adds D² per position and D²
        per memory position.
        """
        width = config.d_model
        square = width**2
        of_query = square if config.compatibility in ("bilinear", "additive") else 0
        of_key = square if config.compatibility == "additive" else 0
        weights = 14 * square + of_query + of_key
        products = length * (14 * square + of_query) + memory * of_key + 2 * width * length * memory
        # Stored for each position: four gates, h, c, tanh(c), both inputs of the output matrix, the output, and the
        # attention weights.
        kept = length * 10 * width + length * memory
        if config.compatibility == "additive":
            weights += width  # the vector v
            kept = kept + length * width * memory + memory * width
        if config.bias:
            weights += 4 * width
        return Cost(weights, 2 * products, kept)
