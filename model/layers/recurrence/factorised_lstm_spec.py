"""Options and cost of an LSTM whose gates' matrix has a low rank. No torch."""

from typing import ClassVar

from pydantic import Field

from model.layers.recurrence.recurrent_spec import OneByOneSpec
from model.layers.spec import Cost, Length
from model.settings import ModelSettings, Side


class FactorisedLSTMSpec(OneByOneSpec):
    """F-LSTM: [x; h] reaches the gates through `rank` values; half of d_model if unset."""

    computation: ClassVar[str] = "model.layers.recurrence.factorised_lstm:FactorisedLSTM"
    reads: ClassVar[tuple[str, ...]] = ("bias",)

    rank: int | None = Field(None, ge=1)

    def rank_of(self, config: ModelSettings) -> int:
        """Return the rank with these settings."""
        return self.rank or max(1, config.d_model // 2)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·(2·D·r + 4·D·r) products."""
        width, rank = config.d_model, self.rank_of(config)
        weights = 6 * width * rank
        biases = 4 * width if config.bias else 0
        kept = length * (rank + 7 * width)  # of each position: the narrow values, four gates, c, its tanh, h
        return Cost(weights + biases, 2 * length * weights, kept)
