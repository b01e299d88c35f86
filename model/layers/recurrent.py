"""Recurrent sub-layers. Shapes: B sentences, T positions, M memory, K beams, R = B·K rows, D d_model.

rnn    h_t = tanh(W x_t + U h_{t−1} + b)    (Elman 1990, "Finding Structure in Time", with a bias on either side)
gru    Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder", section 2.3; torch and cuDNN apply
       the reset gate after the product with U
lstm   Hochreiter & Schmidhuber 1997 with a forget gate, the equations of torch.nn.LSTM
attentional_lstm   an LSTM whose attention is fed back to it (Luong et al. 2015)
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer, without_autocast
from model.parts.compatibility import COMPATIBILITY
from model.recurrent_specs import AttentionalLSTMSpec, RecurrentSpec
from model.settings import ModelSettings

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
    so that each keeps the width D. columns: the first half of the width has a network of its own, the second one that
    reads in the other direction (Zhou et al. 2016, arXiv 1606.04199). units: an LSTM's state is as wide, and its output
    is projected to D (Sak et al. 2014, arXiv 1402.1128).
    """

    def __init__(self, config: ModelSettings, options: RecurrentSpec) -> None:
        super().__init__()
        fused, self.whole, self.cell = CELLS[options.cell]
        self.columns, self.reads_backward = options.columns, options.backward
        width = config.d_model // (1 + options.columns)
        projected = {"proj_size": width} if options.units else {}

        def network() -> nn.RNNBase:
            return fused(width, options.units or width, bias=config.bias, batch_first=True, **projected)

        self.ahead = network()
        self.back = network() if options.bidirectional or options.columns else None
        self.kept = ("h", "c") if options.cell == "LSTM" else ("h",)

    def initialise(self) -> None:
        """U(±1/√D), biases too, as torch draws them; √units where there are."""
        for network in (self.ahead, self.back):
            if network is not None:
                network.reset_parameters()

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D). Padding comes after the pieces, so it has no influence on them."""
        keep_BT, backward = inputs.keep_BT, self.reads_backward
        first_BTD, second_BTD = x_BTD.chunk(2, -1) if self.columns else (x_BTD, x_BTD)
        output_BTD = self._directed(self.ahead, first_BTD, keep_BT, backward)
        if self.back is None:
            return output_BTD
        back_BTD = self._directed(self.back, second_BTD, keep_BT, not backward)
        return torch.cat([output_BTD, back_BTD], -1) if self.columns else output_BTD + back_BTD

    def _directed(self, network: nn.RNNBase, x_BTD: Tensor, keep_BT: Tensor | None, backward: bool) -> Tensor:
        """The network's outputs at their positions, read from the beginning or from the end."""
        if not backward:
            return self._run(network, x_BTD)
        return _reversed(self._run(network, _reversed(x_BTD, keep_BT)), keep_BT)

    def _run(self, network: nn.RNNBase, x_BTD: Tensor) -> Tensor:
        if not (x_BTD.is_cpu and torch.is_autocast_enabled("cpu")):
            output_BTD: Tensor = network(x_BTD)[0]
            return output_BTD
        # On a processor autocast casts the weights of rnn and gru at each position, unless they are narrow already.
        narrow = torch.get_autocast_dtype("cpu")
        weights = [weight.to(narrow) for weight in network.all_weights[0]]
        with without_autocast(x_BTD.device):
            zeros_1BD = x_BTD.new_zeros(1, x_BTD.shape[0], x_BTD.shape[2], dtype=narrow)
            cell_1BU = zeros_1BD.new_zeros(1, x_BTD.shape[0], network.hidden_size)
            start = (zeros_1BD, cell_1BU) if len(self.kept) > 1 else zeros_1BD
            options = (network.bias, 1, 0.0, self.training, False, True)  # one layer and direction, batch first
            return self.whole(x_BTD.to(narrow), start, weights, *options)[0]

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """h, and c of an LSTM: zeros (B, K, D); c has the width of `units`."""
        weight = self.ahead.all_weights[0][0]
        widths = {"h": weight.shape[1], "c": self.ahead.hidden_size}
        return State(**{n: weight.new_zeros(shape.sentences, shape.beam_size, widths[n]) for n in self.kept})

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D)."""
        past = tuple(state.of_parents(name, now) for name in self.kept)
        new = self.one(x_RD, past, self.ahead.all_weights[0])
        state.put({n: new_R.view(-1, now.beam_size, new_R.shape[-1]) for n, new_R in zip(self.kept, new, strict=True)})
        return new[0]

    def one(self, x_RD: Tensor, past: tuple[Tensor, ...], weights: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """h, and c of an LSTM, after one more position, by a network's weights."""
        if len(weights) % 2:  # the last one projects; torch has no cell with it
            *gates, project_DU = weights
            biases = gates[2:] or (None, None)
            gates_R4U = F.linear(x_RD, gates[0], biases[0]) + F.linear(past[0], gates[1], biases[1])
            i, f, g, o = gates_R4U.chunk(4, -1)
            c_RU = f.sigmoid() * past[1] + i.sigmoid() * g.tanh()
            return (o.sigmoid() * c_RU.tanh()) @ project_DU.T, c_RU
        output = self.cell(x_RD, past if len(past) > 1 else past[0], *weights)
        return output if isinstance(output, tuple) else (output,)


def _reversed(x_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
    """Each sentence from its end to its beginning; padding stays where it is."""
    if keep_BT is None:
        return x_BTD.flip(1)
    times_T = torch.arange(x_BTD.shape[1], device=x_BTD.device)
    mirrored_BT = keep_BT.sum(1, keepdim=True) - 1 - times_T
    index_BT = torch.where(mirrored_BT >= 0, mirrored_BT, times_T)
    return x_BTD.gather(1, index_BT.unsqueeze(-1).expand_as(x_BTD))


# --- An LSTM with attention whose result is fed back
# Luong et al. 2015 (arXiv 1508.04025), sections 3.1 and 3.3: with the state h_t, the scores of h_t and m_s, their
# softmax a_t and the context c_t = Σ a_t(s) m_s,
#     h̃_t = tanh(W_c [c_t; h_t])        (equation 5), which is the output, and a part of the input at t + 1
# There the LSTM that is fed is the lowest of the stack, and the one that attends the highest; here both are one.


class AttentionalLSTM(Sublayer):
    """Scores: "dot" h·m, "bilinear" h W m ("general"), "additive" v·tanh(W_a [h; m]) ("concat")."""

    def __init__(self, config: ModelSettings, options: AttentionalLSTMSpec) -> None:
        super().__init__()
        width = config.d_model
        self.input = nn.Linear(width, 4 * width, bias=config.bias)
        self.recurrent = nn.Linear(2 * width, 4 * width, bias=False)  # of h̃ and h
        self.output = nn.Linear(2 * width, width, bias=False)
        self.compare = COMPATIBILITY[config.compatibility](config.model_copy(update={"num_heads": 1, "d_k": width}))
        additive = config.compatibility == "additive"
        self.query = nn.Linear(width, width, bias=False) if additive else nn.Identity()
        self.key = nn.Linear(width, width, bias=False) if additive else nn.Identity()

    def initialise(self) -> None:
        """The LSTM's weights U(±1/√D), biases too, as torch draws them; the rest Glorot-uniform."""
        for parameter in (*self.input.parameters(), *self.recurrent.parameters()):
            nn.init.uniform_(parameter, -(self.input.in_features**-0.5), self.input.in_features**-0.5)
        self.compare.initialise()

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        return self._run(x_BTD, inputs)[0]

    def weights(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """a_t, (B, 1, T, M)."""
        return self._run(x_BTD, inputs)[1]

    def _run(self, x_BTD: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        memory_BMD = inputs.memory_BMD
        assert memory_BMD is not None
        keys_BMD = self.key(memory_BMD)
        zeros_BD = x_BTD.new_zeros(x_BTD.shape[0], x_BTD.shape[2])
        past = (zeros_BD, zeros_BD, zeros_BD)
        outputs, weights = [], []
        for gates_BG in self.input(x_BTD).unbind(1):
            h_B1D, c_BD = self._cell(gates_BG, past)
            found_B1D, weights_B1M = self._attend(h_B1D.unsqueeze(1), keys_BMD, memory_BMD, inputs.memory_bias_B11M)
            past = (found_B1D[:, 0], h_B1D, c_BD)
            outputs.append(found_B1D)
            weights.append(weights_B1M)
        return torch.cat(outputs, 1), torch.cat(weights, 1).unsqueeze(1)

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Memory and keys, once per sentence; h̃, h and c of each beam."""
        memory_BMD = inputs.memory_BMD
        assert memory_BMD is not None
        zeros = memory_BMD.new_zeros(shape.sentences, shape.beam_size, memory_BMD.shape[-1])
        return State(memory=memory_BMD, keys=self.key(memory_BMD), output=zeros, h=zeros, c=zeros)

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D)."""
        past = tuple(state.of_parents(name, now) for name in ("output", "h", "c"))
        h_RD, c_RD = self._cell(self.input(x_RD), past)
        h_BKD, c_BKD = (x.view(-1, now.beam_size, x.shape[-1]) for x in (h_RD, c_RD))
        found_BKD, weights_BKM = self._attend(h_BKD, state["keys"], state["memory"], now.inputs.memory_bias_B11M)
        if now.weights_LBKM is not None:
            now.weights_LBKM.append(weights_BKM)
        state.put({"output": found_BKD, "h": h_BKD, "c": c_BKD})
        return found_BKD.flatten(0, 1)

    def _cell(self, gates_BG: Tensor, past: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """h and c, each (B, D), from the input's part of the gates and from h̃, h, c of the step before."""
        fed_BD, h_BD, c_BD = past
        gates_BG = gates_BG + self.recurrent(torch.cat([fed_BD, h_BD], -1))
        # c adds up over all positions, so autocast does not shorten it
        i, f, g, o = gates_BG.to(torch.promote_types(gates_BG.dtype, torch.float32)).chunk(4, -1)
        c_BD = f.sigmoid() * c_BD + i.sigmoid() * g.tanh()
        return o.sigmoid() * c_BD.tanh(), c_BD

    def _attend(
        self, h_BQD: Tensor, keys_BMD: Tensor, memory_BMD: Tensor, bias_B11M: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """h̃ (B, Q, D) and the weights (B, Q, M) of Q states a sentence."""
        scores_BQM = self.compare(self.query(h_BQD).unsqueeze(1), keys_BMD.unsqueeze(1))[:, 0]
        scores_BQM = scores_BQM.to(torch.promote_types(scores_BQM.dtype, torch.float32))
        if bias_B11M is not None:
            scores_BQM = scores_BQM + bias_B11M[:, 0]
        weights_BQM = scores_BQM.softmax(-1)
        context_BQD = weights_BQM.to(memory_BMD.dtype) @ memory_BMD
        return self.output(torch.cat([context_BQD, h_BQD.to(context_BQD.dtype)], -1)).tanh(), weights_BQM
