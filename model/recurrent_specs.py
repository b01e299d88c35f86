"""The recurrent kinds of sub-layer (one type of layer of Table 1) as planning sees them, without torch (specs.py)."""

import math
from typing import ClassVar

from model.settings import ModelSettings
from model.specs import Cost, Length, Side, Spec


class RecurrentSpec(Spec):
    """The common part of the three: the number of gates tells their sizes apart."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)
    compiles: ClassVar[bool] = False  # torch's compiler refuses its fused recurrent networks
    cell: ClassVar[str]  # in torch
    gates: ClassVar[int]  # matrices D × D for the input, and as many for the state
    states: ClassVar[int]  # values of width D that a step keeps for the backward pass

    bidirectional: bool = False  # also from the end to the beginning, with weights of its own; the two are added

    backward: bool = False  # from the end to the beginning alone

    def check(self, config: ModelSettings, side: Side) -> None:
        """A decoder must not read its future."""
        for name in ("bidirectional", "backward"):
            if getattr(self, name) and side == "decoder":
                raise ValueError(f"{name}=true would read the target's future: only an encoder can have it")
        if self.bidirectional and self.backward:
            raise ValueError("bidirectional=true reads in both directions, backward=true in one: take one of them")

    def sequential(self, length: int) -> int:
        """One step for each position, in both directions at once."""
        return length

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """One step for each position from the input to the output."""
        read = self.bidirectional or (distance <= 0 if self.backward else distance >= 0)
        return abs(distance) + 1.0 if read else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """T·2·gates·D² products in each direction. Two vectors of biases for each gate, as torch and cuDNN have."""
        directions = 2 if self.bidirectional else 1
        matrices = directions * 2 * self.gates * config.d_model**2
        biases = directions * 2 * self.gates * config.d_model if config.bias else 0
        # the input of the second direction is a copy
        kept = directions * self.states + (self.bidirectional or self.backward)
        return Cost(matrices + biases, 2 * length * matrices, kept * length * config.d_model)


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


# --- An LSTM that reads its own attention of the step before


class AttentionalLSTMSpec(Spec):
    """Luong's decoder with input feeding. `compatibility`: dot, bilinear ("general"), additive ("concat")."""

    reads: ClassVar[tuple[str, ...]] = ("compatibility", "bias")
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True
    compiles: ClassVar[bool] = False  # a loop over positions: as many graphs as lengths

    def sequential(self, length: int) -> int:
        """One step for each position."""
        return length

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """One step for each position from the input to the output."""
        return distance + 1.0 if distance >= 0 else math.inf

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
