"""An LSTM with attention and input feeding, where the result of the attention is also an input of the next step.

The source is Luong et al. 2015 (arXiv 1508.04025), sections 3.1 and 3.3. a_t is the softmax of the scores of the state
h_t with the memories m_s, and the context is c_t = Σ a_t(s) m_s. The output, which is also an input at t + 1, is

    h̃_t = tanh(W_c [c_t; h_t])        (equation 5)

In the paper, the lowest LSTM of a stack reads h̃ and the highest LSTM attends. Here one LSTM does both.

Shapes: B sentences, T positions, M memory positions, Q states, K beams, R = B·K rows of a search, D d_model, G = 4·D,
L layers.
"""

import torch
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.recurrence.attentional_lstm_spec import AttentionalLSTMSpec
from model.parts.compatibility import COMPATIBILITY
from model.settings import ModelSettings


class AttentionalLSTM(Sublayer):
    """An LSTM with attention. `compatibility` selects the score (the names of the paper are in brackets):

    - "scaled_dot" (not in the paper): h·m / √D
    - "dot": h·m
    - "bilinear" ("general"): h W m
    - "additive" ("concat"): v·tanh(W_a [h; m])
    """

    attends_to = "source"

    def __init__(self, config: ModelSettings, options: AttentionalLSTMSpec) -> None:
        super().__init__()
        width = config.d_model
        self.input = nn.Linear(width, 4 * width, bias=config.bias)
        self.recurrent = nn.Linear(2 * width, 4 * width, bias=False)  # reads h̃ and h
        self.output = nn.Linear(2 * width, width, bias=False)
        self.compare = COMPATIBILITY[config.compatibility](config.model_copy(update={"num_heads": 1, "d_k": width}))
        additive = config.compatibility == "additive"
        self.query = nn.Linear(width, width, bias=False) if additive else nn.Identity()
        self.key = nn.Linear(width, width, bias=False) if additive else nn.Identity()

    def initialise(self) -> None:
        """Draw the LSTM's weights and biases from U(±1/√D), as torch does. The other weights are Glorot-uniform."""
        for parameter in (*self.input.parameters(), *self.recurrent.parameters()):
            nn.init.uniform_(parameter, -(self.input.in_features**-0.5), self.input.in_features**-0.5)
        self.compare.initialise()

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        return self._run(x_BTD, inputs)[0]

    def weights(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Return a_t, (B, 1, T, M)."""
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
        """Return the memory and the keys of each sentence, and zeros for h̃, h and c of each beam."""
        memory_BMD = inputs.memory_BMD
        assert memory_BMD is not None
        zeros = memory_BMD.new_zeros(shape.sentences, shape.beam_size, memory_BMD.shape[-1])
        return State(memory=memory_BMD, keys=self.key(memory_BMD), output=zeros, h=zeros, c=zeros)

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        past = tuple(state.of_parents(name, now) for name in ("output", "h", "c"))
        h_RD, c_RD = self._cell(self.input(x_RD), past)
        h_BKD, c_BKD = (x.view(-1, now.beam_size, x.shape[-1]) for x in (h_RD, c_RD))
        found_BKD, weights_BKM = self._attend(h_BKD, state["keys"], state["memory"], now.inputs.memory_bias_B11M)
        if now.weights_LBKM is not None:
            now.weights_LBKM.append(weights_BKM)
        state.put({"output": found_BKD, "h": h_BKD, "c": c_BKD})
        return found_BKD.flatten(0, 1)

    def _cell(self, gates_BG: Tensor, past: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        """Return h and c, each (B, D).

        gates_BG: the product of the gates' matrix with the input; past: h̃, h, c of the previous step.
        """
        fed_BD, h_BD, c_BD = past
        gates_BG = gates_BG + self.recurrent(torch.cat([fed_BD, h_BD], -1))
        # c stays in fp32 under autocast, because it accumulates over all positions.
        i, f, g, o = gates_BG.to(torch.promote_types(gates_BG.dtype, torch.float32)).chunk(4, -1)
        c_BD = f.sigmoid() * c_BD + i.sigmoid() * g.tanh()
        return o.sigmoid() * c_BD.tanh(), c_BD

    def _attend(
        self, h_BQD: Tensor, keys_BMD: Tensor, memory_BMD: Tensor, bias_B11M: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return h̃ (B, Q, D) and the weights (B, Q, M) for Q states of each sentence."""
        scores_BQM = self.compare(self.query(h_BQD).unsqueeze(1), keys_BMD.unsqueeze(1))[:, 0]
        scores_BQM = scores_BQM.to(torch.promote_types(scores_BQM.dtype, torch.float32))
        if bias_B11M is not None:
            scores_BQM = scores_BQM + bias_B11M[:, 0]
        weights_BQM = scores_BQM.softmax(-1)
        context_BQD = weights_BQM.to(memory_BMD.dtype) @ memory_BMD
        return self.output(torch.cat([context_BQD, h_BQD.to(context_BQD.dtype)], -1)).tanh(), weights_BQM
