"""An LSTM with a factorised matrix for its gates (F-LSTM).

The source is Kuchaiev & Ginsburg 2017, "Factorization tricks for LSTM networks" (arXiv 1703.10722). The matrix that
maps [x_t; h_{t−1}] to the four gates is W2 · W1, with W1 of size r × 2D and W2 of size 4D × r.

Shapes: B sentences, T positions, K beams, R = B·K rows of a search, D d_model, r rank, G = 4·D gates.
"""

import torch
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.recurrence.factorised_lstm_spec import FactorisedLSTMSpec
from model.settings import ModelSettings


class FactorisedLSTM(Sublayer):
    """(i, f, g, o) = W2 W1 [x_t; h_{t−1}] + b; c_t = σ(f) c_{t−1} + σ(i) tanh(g); h_t = σ(o) tanh(c_t)."""

    def __init__(self, config: ModelSettings, options: FactorisedLSTMSpec) -> None:
        super().__init__()
        width, rank = config.d_model, options.rank_of(config)
        self.input = nn.Linear(width, rank, bias=False)  # the columns of W1 that read x, computed for all positions
        self.recurrent = nn.Linear(width, rank, bias=False)  # the columns of W1 that read h
        self.outer = nn.Linear(rank, 4 * width, bias=config.bias)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D). Padding at the end does not influence earlier positions."""
        h_BD = c_BD = x_BTD.new_zeros(x_BTD.shape[0], x_BTD.shape[2])
        outputs = []
        for read_Br in self.input(x_BTD).unbind(1):
            h_BD, c_BD = self._cell(read_Br, h_BD, c_BD)
            outputs.append(h_BD)
        return torch.stack(outputs, 1)

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return zeros (B, K, D) for h and c."""
        zeros = self.input.weight.new_zeros(shape.sentences, shape.beam_size, self.input.in_features)
        return State(h=zeros, c=zeros)

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        h_RD, c_RD = self._cell(self.input(x_RD), state.of_parents("h", now), state.of_parents("c", now))
        state.put({name: x.view(-1, now.beam_size, x.shape[-1]) for name, x in (("h", h_RD), ("c", c_RD))})
        return h_RD

    def _cell(self, read_Br: Tensor, h_BD: Tensor, c_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Return h and c after one more position. read_Br: the product of W1 with x."""
        gates_BG = self.outer(read_Br + self.recurrent(h_BD))
        # c stays in fp32 under autocast, because it accumulates over all positions.
        i, f, g, o = gates_BG.to(torch.promote_types(gates_BG.dtype, torch.float32)).chunk(4, -1)
        c_BD = f.sigmoid() * c_BD + i.sigmoid() * g.tanh()
        return o.sigmoid() * c_BD.tanh(), c_BD
