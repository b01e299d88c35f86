"""The recurrent kinds of sub-layer (one type of layer of Table 1) as planning sees them, without torch (specs.py)."""

import math
from typing import ClassVar

from pydantic import Field

from model.settings import ModelSettings
from model.specs import Cost, Length, Side, Spec


class _InTurn(Spec):
    """One position after the other, from the beginning."""

    # torch's compiler refuses its fused recurrent networks; of a loop over positions it makes as many graphs as lengths
    compiles: ClassVar[bool] = False

    def sequential(self, length: int) -> int:
        """One step for each position, in both directions at once."""
        return length

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """One step for each position from the input to the output."""
        return distance + 1.0 if distance >= 0 else math.inf


class RecurrentSpec(_InTurn):
    """The common part of the three: the number of gates tells their sizes apart."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)
    cell: ClassVar[str]  # in torch
    gates: ClassVar[int]  # matrices D × D for the input, and as many for the state
    states: ClassVar[int]  # values of width D that a step keeps for the backward pass
    units: int | None = None  # of a state that is wider than its output (lstm)

    bidirectional: bool = False  # also from the end to the beginning, with weights of its own; the two are added

    backward: bool = False  # from the end to the beginning alone

    columns: bool = False  # two networks, each on one half of the width; the second reads in the other direction

    def check(self, config: ModelSettings, side: Side) -> None:
        """A decoder must not read its future, and columns are halves."""
        for name in ("bidirectional", "backward", "columns"):
            if getattr(self, name) and side == "decoder":
                raise ValueError(f"{name}=true would read the target's future: only an encoder can have it")
        if self.bidirectional and (self.backward or self.columns):
            other = "columns=true in one for each half" if self.columns else "backward=true in one"
            raise ValueError(f"bidirectional=true reads in both directions, {other}: take one of them")
        if self.columns and config.d_model % 2:
            raise ValueError(f"columns=true divides the width {config.d_model} in two: take an even one")

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """One step for each position from the input to the output."""
        read = self.bidirectional or self.columns or (distance <= 0 if self.backward else distance >= 0)
        return abs(distance) + 1.0 if read else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """T·2·gates·D² products in each direction. Two vectors of biases for each gate, as torch and cuDNN have.

        With columns, half as many: of two networks of D / 2. With `units` U: T·9·D·U in each direction.
        """
        networks, width = 1 + (self.bidirectional or self.columns), config.d_model // (1 + self.columns)
        units = self.units or width
        matrices = networks * (2 * self.gates * units * width + (units * width if self.units else 0))
        biases = networks * 2 * self.gates * units if config.bias else 0
        # the input of the second direction is a copy; of U values all but the output
        kept = networks * (self.states * units + (width if self.units else 0))
        kept += (self.bidirectional or self.backward or self.columns) * config.d_model
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
        """A projection makes the state narrower."""
        super().check(config, side)
        if self.units is not None and self.units <= config.d_model // (1 + self.columns):
            raise ValueError(f"units={self.units} are projected to the layer's width, which must be smaller")


# --- An LSTM that reads its own attention of the step before


class AttentionalLSTMSpec(_InTurn):
    """Luong's decoder with input feeding. `compatibility`: dot, bilinear ("general"), additive ("concat")."""

    reads: ClassVar[tuple[str, ...]] = ("compatibility", "bias")
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True
    attends: ClassVar[bool] = True

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
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


# --- An LSTM whose gates' matrix has a low rank


class FactorisedLSTMSpec(_InTurn):
    """F-LSTM: [x; h] goes to the gates through `rank` values; half of d_model if unset."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)

    rank: int | None = Field(None, ge=1)

    def rank_of(self, config: ModelSettings) -> int:
        """The rank with these settings."""
        return self.rank or max(1, config.d_model // 2)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """T·(2·D·r + 4·D·r) products."""
        weights, width = 6 * config.d_model * self.rank_of(config), config.d_model
        # of each position: the narrow values, four gates, c, its tanh, h
        kept = length * (self.rank_of(config) + 7 * width)
        return Cost(weights + (4 * width if config.bias else 0), 2 * length * weights, kept)


# --- A gated convolution that is applied again and again


class NeuralGPUSpec(Spec):
    """The Extended Neural GPU. `steps`: how often an encoder applies its unit; as often as it has pieces, if unset."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)
    compiles: ClassVar[bool] = False  # a loop over positions: as many graphs as lengths

    kernel: int = Field(3, ge=1)
    steps: int | None = Field(None, ge=1)

    @property
    def reads_memory(self) -> bool:  # type: ignore[override]
        """A decoder begins with the encoder's output."""
        return self.side == "decoder"

    @property
    def reach(self) -> int:
        """Places on either side that one application reads: the candidate's window of the reset gate's windows."""
        return 2 * (self.kernel // 2)

    def check(self, config: ModelSettings, side: Side) -> None:
        """A window lies around its place, and a decoder's steps are its pieces."""
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel} has no middle: take an odd one, such as kernel={self.kernel + 1}")
        if self.steps is not None and side == "decoder":
            raise ValueError("steps is read in an encoder alone: a decoder applies its unit once for each piece")

    def sequential(self, length: int) -> int:
        """One application for each piece, or `steps`."""
        return self.steps or length

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Applications that move a signal so far; the gate g carries it through the others."""
        needed = max(1, math.ceil(abs(distance) / self.reach)) if self.reach else 1 if distance == 0 else math.inf
        return math.inf if (side == "decoder" and distance < 0) or needed > (self.steps or needed) else float(needed)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """3·k·D² products for each place and application; 6·k·D² with a tape, of T·(1 + reach) places."""
        decodes, width = side == "decoder", config.d_model
        weights = (6 if decodes else 3) * self.kernel * width**2
        units = length**2 * (1 + self.reach) if decodes else length * (self.steps or length)
        # of each place: windows of s and of r ⊙ s (and of p), both gates, the candidate, r ⊙ s, s
        kept = units * width * ((3 if decodes else 2) * self.kernel + 6)
        return Cost(weights + (3 * width if config.bias else 0), 2 * units * weights, kept)
