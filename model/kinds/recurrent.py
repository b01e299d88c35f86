"""Recurrent sub-layers: settings and costs (one type of layer of Table 1)."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.config import ModelConfig


class Recurrent(Kind):
    """The common part of the three: the number of gates tells their sizes apart."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)
    compiles: ClassVar[bool] = False  # torch's compiler refuses its fused recurrent networks
    cell: ClassVar[str]  # in torch
    gates: ClassVar[int]  # matrices D × D for the input, and as many for the state
    states: ClassVar[int]  # values of width D that a step keeps for the backward pass

    bidirectional: bool = False  # also from the end to the beginning, with weights of its own; the two are added

    backward: bool = False  # from the end to the beginning alone

    def check(self, config: "ModelConfig", side: Side) -> None:
        """A decoder must not read its future."""
        for name in ("bidirectional", "backward"):
            if getattr(self, name) and side == "decoder":
                raise ValueError(f"{name}=true would read the target's future: only an encoder can have it")
        if self.bidirectional and self.backward:
            raise ValueError("bidirectional=true reads in both directions, backward=true in one: take one of them")

    def sequential(self, length: int) -> int:
        """One step for each position, in both directions at once."""
        return length

    def operations(self, config: "ModelConfig", distances: "NDArray[np.int64]", side: Side) -> "NDArray[np.float64]":
        """One step for each position from the input to the output."""
        import numpy as np

        read = (distances <= 0 if self.backward else distances >= 0) | self.bidirectional
        return np.where(read, np.abs(distances) + 1.0, np.inf)

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """T·2·gates·D² products in each direction. Two vectors of biases for each gate, as torch and cuDNN have."""
        directions = 2 if self.bidirectional else 1
        matrices = directions * 2 * self.gates * config.d_model**2
        biases = directions * 2 * self.gates * config.d_model if config.bias else 0
        # the input of the second direction is a copy
        kept = directions * self.states + (self.bidirectional or self.backward)
        return Cost(matrices + biases, 2 * length * matrices, kept * length * config.d_model)


class RNN(Recurrent):
    """Elman's network."""

    cell: ClassVar[str] = "RNN"
    gates: ClassVar[int] = 1
    states: ClassVar[int] = 1  # h


class GRU(Recurrent):
    """Gated recurrent units."""

    cell: ClassVar[str] = "GRU"
    gates: ClassVar[int] = 3
    states: ClassVar[int] = 5  # the reset and update gates, the candidate and its term of the state, h


class LSTM(Recurrent):
    """Long short-term memory."""

    cell: ClassVar[str] = "LSTM"
    gates: ClassVar[int] = 4
    states: ClassVar[int] = 6  # four gates, c, h
