"""Options and cost of an LSTM with a low-rank matrix for its gates. Imports no torch."""

from typing import ClassVar

from pydantic import Field

from model.layers.recurrence.recurrent_spec import OneByOneSpec
from model.layers.spec import Cost, Length
from model.settings import ModelSettings, Side


class FactorisedLSTMSpec(OneByOneSpec):
    """Options and cost of an F-LSTM. The matrix of the gates has the rank `rank`, by default d_model / 2."""

    computation: ClassVar[str] = "model.layers.recurrence.factorised_lstm:FactorisedLSTM"
    reads: ClassVar[tuple[str, ...]] = ("bias",)

    rank: int | None = Field(None, ge=1)

    def rank_of(self, config: ModelSettings) -> int:
        """Return `rank`, or half of d_model if it is unset."""
        return self.rank or max(1, config.d_model // 2)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·(2·D·r + 4·D·r) multiplications."""
        width, rank = config.d_model, self.rank_of(config)
        weights = 6 * width * rank
        biases = 4 * width if config.bias else 0
        kept = length * (rank + 7 * width)  # stored for each position: `rank` values, four gates, c, tanh(c), h
        return Cost(weights + biases, 2 * length * weights, kept)
