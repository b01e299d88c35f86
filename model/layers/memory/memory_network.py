"""An end-to-end memory network over the encoder's output, in several hops.

The source is Sukhbaatar et al. 2015, "End-To-End Memory Networks" (arXiv 1503.08895), section 2. The query is
u^1 = B x. Each output e_i of the encoder gives the memories m_i = A e_i and c_i = C e_i. Each hop k computes
p = softmax(u^k · m_i), o^k = Σ p_i c_i and, with layer-wise weights (section 2.2), u^{k+1} = H u^k + o^k. A, C and H
are the same in all hops. The encoder's positions replace the temporal encoding of the paper (section 4.1). The softmax
of the network replaces the output matrix W of the paper.

Shapes: B sentences, T positions, S source, Q queries, M = S, K beams, R = B·K rows of a search,
D d_model.
"""

import torch
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.memory.memory_network_spec import MemoryNetworkSpec
from model.settings import ModelSettings


class MemoryNetwork(Sublayer):
    """An end-to-end memory network. Its output is u^{hops + 1}.

    Each position reads the memory independently of the other positions, so a search stores only A e and C e.
    """

    def __init__(self, config: ModelSettings, options: MemoryNetworkSpec) -> None:
        super().__init__()
        width, self.hops = config.d_model, options.hops
        self.query = nn.Linear(width, width, bias=False)  # B
        self.key = nn.Linear(width, width, bias=False)  # A
        self.value = nn.Linear(width, width, bias=False)  # C
        self.between = nn.Linear(width, width, bias=False)  # H

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        assert inputs.memory_BMD is not None
        keys_BSD, values_BSD = self.key(inputs.memory_BMD), self.value(inputs.memory_BMD)
        return self._hops(x_BTD, keys_BSD, values_BSD, inputs.memory_bias_B11M)

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return A e and C e, (B, S, D). All beams of a sentence share them."""
        assert inputs.memory_BMD is not None
        return State(keys=self.key(inputs.memory_BMD), values=self.value(inputs.memory_BMD))

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        x_BKD = x_RD.view(-1, now.beam_size, x_RD.shape[-1])
        return self._hops(x_BKD, state["keys"], state["values"], now.inputs.memory_bias_B11M).flatten(0, 1)

    def _hops(self, x_BQD: Tensor, keys_BSD: Tensor, values_BSD: Tensor, bias_B11S: Tensor | None) -> Tensor:
        u_BQD: Tensor = self.query(x_BQD)
        for _ in range(self.hops):
            scores_BQS = u_BQD @ keys_BSD.mT
            scores_BQS = scores_BQS.to(torch.promote_types(scores_BQS.dtype, torch.float32))
            if bias_B11S is not None:
                scores_BQS = scores_BQS + bias_B11S[:, 0]
            u_BQD = self.between(u_BQD) + scores_BQS.softmax(-1).to(values_BSD.dtype) @ values_BSD
        return u_BQD
