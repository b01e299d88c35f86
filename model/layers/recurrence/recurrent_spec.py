"""Options and cost of the sub-layers rnn, gru and lstm (layer type "Recurrent" of Table 1). Imports no torch."""

import math
from typing import ClassVar

from pydantic import Field

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side


class OneByOneSpec(Spec):
    """A sub-layer that computes the positions one by one, from the beginning."""

    # torch.compile does not support torch's fused recurrent networks. It would unroll a Python loop over positions to
    # one graph for each length.
    compiles: ClassVar[bool] = False

    def sequential(self, length: int) -> int:
        """Return `length`: one step for each position. Two directions are computed in parallel."""
        return length

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return the number of steps from the input to the output, or inf for a later input."""
        return distance + 1.0 if distance >= 0 else math.inf


class RecurrentSpec(OneByOneSpec):
    """Base class of the three recurrent kinds, which differ in the number of gates."""

    computation: ClassVar[str] = "model.layers.recurrence.recurrent:Recurrent"
    reads: ClassVar[tuple[str, ...]] = ("bias",)
    cell: ClassVar[str]  # name of the cell in torch
    gates: ClassVar[int]  # number of D × D matrices that multiply the input; as many multiply the state
    states: ClassVar[int]  # number of values of width D that a step stores for the backward pass
    units: int | None = None  # width of the state if it is wider than the output (lstm)

    bidirectional: bool = False  # a second network with separate weights reads from the end; the outputs are added

    backward: bool = False  # the only network reads from the end to the beginning

    gain: float = Field(1.0, gt=0)  # factor on the initial matrices that multiply the state

    columns: bool = False  # two networks, one on each half of the width, which read in opposite directions

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for a decoder that reads later positions, for incompatible options, and for an odd width.

        The width must be even only with `columns`. `bidirectional` excludes `backward` and `columns`.
        """
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
        """Return the number of steps from the input to the output, or inf if no direction connects them."""
        both = self.bidirectional or self.columns
        reads_it = both or (distance <= 0 if self.backward else distance >= 0)
        return abs(distance) + 1.0 if reads_it else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost: T·2·gates·D² multiplications in each direction.

        Each gate has two bias vectors, as in torch and cuDNN. With `columns` there are two networks of width D / 2,
        which together take half as many multiplications as one network of width D. An LSTM with U `units` takes T·9·D·U
        in each direction.
        """
        networks = 2 if self.bidirectional or self.columns else 1
        width = config.d_model // 2 if self.columns else config.d_model
        units = self.units or width
        matrices = 2 * self.gates * units * width
        kept = self.states * units
        if self.units:
            matrices += units * width
            kept += width  # the projected output is stored in addition to the states
        matrices *= networks
        kept *= networks
        if self.bidirectional or self.backward or self.columns:
            kept += config.d_model  # a reversed copy of the input
        biases = networks * 2 * self.gates * units if config.bias else 0
        return Cost(matrices + biases, 2 * length * matrices, kept * length)


class RNNSpec(RecurrentSpec):
    """Options and cost of rnn, Elman's recurrent network."""

    cell: ClassVar[str] = "RNN"
    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1  # h


class GRUSpec(RecurrentSpec):
    """Options and cost of gru, a network of gated recurrent units."""

    cell: ClassVar[str] = "GRU"
    gates: ClassVar[int] = 3
    states: ClassVar[int] = 5  # reset gate, update gate, candidate, the candidate's product with the state, h


class LSTMSpec(RecurrentSpec):
    """Options and cost of lstm, a network with long short-term memory."""

    cell: ClassVar[str] = "LSTM"
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 6  # four gates, c, h

    units: int | None = Field(None, ge=1)

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for incompatible options, and for a state that is not wider than the output."""
        super().check(config, side)
        if self.units is not None and self.units <= config.d_model // (2 if self.columns else 1):
            raise ValueError(f"units={self.units} are projected to the layer's width, which must be smaller")
