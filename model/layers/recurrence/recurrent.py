"""Recurrent sub-layers. Shapes: B sentences, T positions, K beams, R = B·K rows, D d_model.

rnn    h_t = tanh(W x_t + U h_{t−1} + b)    (Elman 1990, "Finding Structure in Time"; b is the sum of two bias vectors)
gru    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", section 2.3; unlike the paper,
       torch and cuDNN apply the reset gate after the product with U
lstm   Hochreiter & Schmidhuber 1997 with a forget gate, the equations of torch.nn.LSTM
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.recurrence.recurrent_spec import RecurrentSpec
from model.parts.autocast import without_autocast
from model.settings import ModelSettings

Cell = Callable[..., Tensor | tuple[Tensor, Tensor]]
Whole = Callable[..., tuple[Tensor, ...]]
CELLS: dict[str, tuple[Callable[..., nn.RNNBase], Whole, Cell]] = {  # module, function of sequences, function of a step
    "RNN": (nn.RNN, torch.rnn_tanh, torch.rnn_tanh_cell),
    "GRU": (nn.GRU, torch.gru, torch.gru_cell),
    "LSTM": (nn.LSTM, torch.lstm, torch.lstm_cell),
}


class Recurrent(Sublayer):
    """A recurrent network. torch's fused network computes whole sequences; a cell computes the steps of a search.

    - bidirectional: the outputs of the two directions are added, as in Schuster & Paliwal 1997 ("Bidirectional
      Recurrent Neural Networks"), so that both networks have the width D.
    - columns: each half of the width has a separate network, and the two read in opposite directions (Zhou et al. 2016,
      arXiv 1606.04199).
    - units: the width of an LSTM's state; its output is projected to D (Sak et al. 2014, arXiv 1402.1128).
    - gain: the spectral radius of the state's initial matrix is about gain / √3. The gradients of an rnn vanish with
      distance for gain = 1 and explode for gain = 5 (Pascanu et al. 2013, arXiv 1211.5063, section 2.1).
    """

    def __init__(self, config: ModelSettings, options: RecurrentSpec) -> None:
        super().__init__()
        fused, self.whole, self.cell = CELLS[options.cell]
        self.columns, self.reads_backward, self.gain = options.columns, options.backward, options.gain
        width = config.d_model // (1 + options.columns)
        projected = {"proj_size": width} if options.units else {}

        def network() -> nn.RNNBase:
            return fused(width, options.units or width, bias=config.bias, batch_first=True, **projected)

        self.ahead = network()
        self.back = network() if options.bidirectional or options.columns else None
        self.kept = ("h", "c") if options.cell == "LSTM" else ("h",)

    def initialise(self) -> None:
        """Draw weights and biases from U(±1/√D), as torch does, or from U(±1/√units) if `units` is set.

        The matrix that multiplies the state is then multiplied by `gain`.
        """
        for network in (self.ahead, self.back):
            if network is None:
                continue
            network.reset_parameters()
            weight_hh = network.all_weights[0][1]
            with torch.no_grad():
                weight_hh.mul_(self.gain)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D). Padding at the end does not influence other positions."""
        keep_BT, backward = inputs.keep_BT, self.reads_backward
        first_BTD, second_BTD = x_BTD.chunk(2, -1) if self.columns else (x_BTD, x_BTD)
        output_BTD = self._directed(self.ahead, first_BTD, keep_BT, backward)
        if self.back is None:
            return output_BTD
        back_BTD = self._directed(self.back, second_BTD, keep_BT, not backward)
        return torch.cat([output_BTD, back_BTD], -1) if self.columns else output_BTD + back_BTD

    def _directed(self, network: nn.RNNBase, x_BTD: Tensor, keep_BT: Tensor | None, backward: bool) -> Tensor:
        """Run a network from the beginning or from the end. The output at index t belongs to position t."""
        if not backward:
            return self._run(network, x_BTD)
        return _reversed(self._run(network, _reversed(x_BTD, keep_BT)), keep_BT)

    def _run(self, network: nn.RNNBase, x_BTD: Tensor) -> Tensor:
        if not (x_BTD.is_cpu and torch.is_autocast_enabled("cpu")):
            output_BTD: Tensor = network(x_BTD)[0]
            return output_BTD
        # On a CPU, autocast casts the weights of rnn and gru at each position, so cast them once here.
        narrow = torch.get_autocast_dtype("cpu")
        weights = [weight.to(narrow) for weight in network.all_weights[0]]
        with without_autocast(x_BTD.device):
            zeros_1BD = x_BTD.new_zeros(1, x_BTD.shape[0], x_BTD.shape[2], dtype=narrow)
            cell_1BU = zeros_1BD.new_zeros(1, x_BTD.shape[0], network.hidden_size)
            start = (zeros_1BD, cell_1BU) if len(self.kept) > 1 else zeros_1BD
            options = (network.bias, 1, 0.0, self.training, False, True)  # one layer and direction, batch first
            return self.whole(x_BTD.to(narrow), start, weights, *options)[0]

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return zeros for h (B, K, D) and, in an LSTM, for c (B, K, U). U is `units`, or D if unset."""
        weight = self.ahead.all_weights[0][0]
        widths = {"h": weight.shape[1], "c": self.ahead.hidden_size}
        return State(**{n: weight.new_zeros(shape.sentences, shape.beam_size, widths[n]) for n in self.kept})

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        past = tuple(state.of_parents(name, now) for name in self.kept)
        new = self.one(x_RD, past, self.ahead.all_weights[0])
        state.put({n: new_R.view(-1, now.beam_size, new_R.shape[-1]) for n, new_R in zip(self.kept, new, strict=True)})
        return new[0]

    def one(self, x_RD: Tensor, past: tuple[Tensor, ...], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Return h, and for an LSTM also c, after one more position. weights: `all_weights[0]` of a torch network."""
        if len(weights) % 2:  # the last weight is a projection, which torch's cells do not support
            *gates, project_DU = weights
            biases = gates[2:] or (None, None)
            gates_R4U = F.linear(x_RD, gates[0], biases[0]) + F.linear(past[0], gates[1], biases[1])
            i, f, g, o = gates_R4U.chunk(4, -1)
            c_RU = f.sigmoid() * past[1] + i.sigmoid() * g.tanh()
            return (o.sigmoid() * c_RU.tanh()) @ project_DU.T, c_RU
        output = self.cell(x_RD, past if len(past) > 1 else past[0], *weights)
        return output if isinstance(output, tuple) else (output,)


def _reversed(x_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """Reverse the positions of each sentence. Padding is not moved."""
    if keep_BT is None:
        return x_BTD.flip(1)
    times_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    mirrored_BT = keep_BT.sum(1, keepdim=True) - 1 - times_T
    index_BT = torch.where(mirrored_BT >= 0, mirrored_BT, times_T)
    return x_BTD.gather(1, index_BT.unsqueeze(-1).expand_as(x_BTD))
