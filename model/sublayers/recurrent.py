"""Recurrent sub-layers. Shapes: B sentences, T positions, K beams, R = B·K rows, D d_model.

rnn    h_t = tanh(W x_t + U h_{t−1} + b)    (Elman 1990, "Finding Structure in Time", with a bias on either side)
gru    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", section 2.3; torch and cuDNN apply
       the reset gate after the product with U
lstm   Hochreiter & Schmidhuber 1997 with a forget gate, the equations of torch.nn.LSTM
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.kinds import recurrent as kinds
from model.parts.autocast import without_autocast
from model.sublayers.contract import Given, Now, Room, State, Sublayer

Cell = Callable[..., Tensor | tuple[Tensor, Tensor]]
Whole = Callable[..., tuple[Tensor, ...]]
CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Whole, Cell]] = {  # module, whole sequences, one step
    "RNN": (nn.RNN, torch.rnn_tanh, torch.rnn_tanh_cell),
    "GRU": (nn.GRU, torch.gru, torch.gru_cell),
    "LSTM": (nn.LSTM, torch.lstm, torch.lstm_cell),
}


class Recurrent(Sublayer):
    """torch's fused network over whole sequences, and the same weights cell by cell in a search.

    The outputs of two directions are added, as in Schuster & Paliwal 1997 ("Bidirectional Recurrent Neural Networks"),
    so that each keeps the width D.
    """

    def __init__(self, config: ModelConfig, options: kinds.Recurrent) -> None:
        super().__init__()
        fused, self.whole, self.cell = CELLS[options.cell]
        width = config.d_model
        self.reads_backward = options.backward
        self.ahead = fused(width, width, bias=config.bias, batch_first=True)
        self.back = fused(width, width, bias=config.bias, batch_first=True) if options.bidirectional else None
        self.kept = ("h", "c") if options.cell == "LSTM" else ("h",)

    def initialise(self) -> None:
        """U(±1/√D), biases too, as torch draws them."""
        for network in (self.ahead, self.back):
            if network is not None:
                network.reset_parameters()

    def forward(self, x_BTD: Tensor, given: Given) -> Tensor:
        """(B, T, D) → (B, T, D). Padding comes after the pieces, so it has no influence on them."""
        if self.reads_backward:
            return _reversed(self._run(self.ahead, _reversed(x_BTD, given.keep_BT)), given.keep_BT)
        ahead_BTD = self._run(self.ahead, x_BTD)
        if self.back is None:
            return ahead_BTD
        back_BTD = self._run(self.back, _reversed(x_BTD, given.keep_BT))
        return ahead_BTD + _reversed(back_BTD, given.keep_BT)

    def _run(self, network: nn.RNNBase, x_BTD: Tensor) -> Tensor:
        if not (x_BTD.is_cpu and torch.is_autocast_enabled("cpu")):
            output_BTD: Tensor = network(x_BTD)[0]
            return output_BTD
        # On a processor autocast casts the weights of rnn and gru at each position, unless they are narrow already.
        narrow = torch.get_autocast_dtype("cpu")
        weights = [weight.to(narrow) for weight in network.all_weights[0]]
        with without_autocast(x_BTD.device):
            zeros_1BD = x_BTD.new_zeros(1, x_BTD.shape[0], x_BTD.shape[2], dtype=narrow)
            start = (zeros_1BD, zeros_1BD) if len(self.kept) > 1 else zeros_1BD
            options = (network.bias, 1, 0.0, self.training, False, True)  # one layer and direction, batch first
            return self.whole(x_BTD.to(narrow), start, weights, *options)[0]

    def start(self, given: Given, room: Room) -> State:
        """h, and c of an LSTM: zeros (B, K, D)."""
        weight = self.ahead.all_weights[0][0]
        return State(**{n: weight.new_zeros(room.sentences, room.beam_size, weight.shape[1]) for n in self.kept})

    def step(self, x_RD: Tensor, state: State, now: Now) -> Tensor:
        """(R, D) → (R, D)."""
        past = tuple(state.of_parents(name, now) for name in self.kept)
        found = self.cell(x_RD, past if len(past) > 1 else past[0], *self.ahead.all_weights[0])
        new = found if isinstance(found, tuple) else (found,)
        state.put({n: new_RD.view(-1, now.beam_size, x_RD.shape[-1]) for n, new_RD in zip(self.kept, new, strict=True)})
        return new[0]


def _reversed(x_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """Each sentence from its end to its beginning; padding stays where it is."""
    if keep_BT is None:
        return x_BTD.flip(1)
    times_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    mirrored_BT = keep_BT.sum(1, keepdim=True) - 1 - times_T
    index_BT = torch.where(mirrored_BT >= 0, mirrored_BT, times_T)
    return x_BTD.gather(1, index_BT.unsqueeze(-1).expand_as(x_BTD))
