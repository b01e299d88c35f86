"""Options and cost of the recurrent sub-layers rnn, gru and lstm, one of the types of layers of Table 1. No torch."""

import math
from typing import ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class OneByOneSpec(Spec):
    """A sub-layer that computes one position after the other, from the beginning."""

    # torch's compiler refuses its fused recurrent networks; of a loop over positions it makes as many graphs as lengths
    compiles: ClassVar[bool] = False

    def sequential(self, length: int) -> int:
        """Return one step for each position; both directions are computed at once."""
        return length

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return one step for each position from the input to the output."""
        return distance + 1.0 if distance >= 0 else math.inf


class RecurrentSpec(OneByOneSpec):
    """Base of the three recurrent kinds; their sizes differ by the number of gates."""

    computation: ClassVar[str] = "model.layers.recurrence.recurrent:Recurrent"
    reads: ClassVar[tuple[str, ...]] = ("bias",)
    cell: ClassVar[str]  # its name in torch
    gates: ClassVar[int]  # matrices D × D for the input, and as many for the state
    states: ClassVar[int]  # values of width D that a step keeps for the backward pass
    units: int | None = None  # width of a state that is wider than its output (lstm)

    bidirectional: bool = False  # also from the end to the beginning, with weights of its own; the two are added

    backward: bool = False  # from the end to the beginning alone

    gain: float = Field(1.0, gt=0)  # factor of the initial matrices that multiply the state

    columns: bool = False  # two networks, each on one half of the width; the second reads in the other direction

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for a decoder that reads its future, two kinds of two directions, and an odd width."""
        for name in ("bidirectional", "backward", "columns"):
            if getattr(self, name) and side == "decoder":
                raise ValueError(
                    f"{name}=true would read future positions of the target: it is allowed only in an encoder"
                )
        if self.bidirectional and (self.backward or self.columns):
            other = "columns=true in one for each half" if self.columns else "backward=true in one"
            raise ValueError(f"bidirectional=true reads in both directions, {other}: choose one of them")
        if self.columns and config.d_model % 2:
            raise ValueError(f"columns=true divides the width {config.d_model} in two: take an even one")

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return one step for each position from the input to the output."""
        both = self.bidirectional or self.columns
        reads_it = both or (distance <= 0 if self.backward else distance >= 0)
        return abs(distance) + 1.0 if reads_it else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·2·gates·D² products in each direction, and two vectors of biases for each gate.

        torch and cuDNN have two vectors of biases. With columns there are half as many products: those of two networks
        of width D / 2. An LSTM with U `units` has T·9·D·U products in each direction.
        """
        networks = 2 if self.bidirectional or self.columns else 1
        width = config.d_model // 2 if self.columns else config.d_model
        units = self.units or width
        matrices = 2 * self.gates * units * width
        kept = self.states * units
        if self.units:
            matrices += units * width
            kept += width  # the output, besides U values of each state
        matrices *= networks
        kept *= networks
        if self.bidirectional or self.backward or self.columns:
            kept += config.d_model  # a copy of the input, in the other direction
        biases = networks * 2 * self.gates * units if config.bias else 0
        return Cost(matrices + biases, 2 * length * matrices, kept * length)


class RNNSpec(RecurrentSpec):
    """Elman's network."""

    cell: ClassVar[str] = "RNN"
    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1  # h


class GRUSpec(RecurrentSpec):
    """Gated recurrent units."""

    cell: ClassVar[str] = "GRU"
    gates: ClassVar[int] = 3
    states: ClassVar[int] = 5  # the reset and update gates, the candidate and its term of the state, h


class LSTMSpec(RecurrentSpec):
    """Long short-term memory."""

    cell: ClassVar[str] = "LSTM"
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 6  # four gates, c, h

    units: int | None = Field(None, ge=1)

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError also for a state that is not wider than its output."""
        super().check(config, side)
        if self.units is not None and self.units <= config.d_model // (2 if self.columns else 1):
            raise ValueError(f"units={self.units} are projected to the layer's width, which must be smaller")
