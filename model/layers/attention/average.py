"""Average attention. Shapes: B sentences, T positions, K beams, R = B·K rows of a search, D d_model."""

import torch
from torch import Tensor, nn

from model.layers.attention.average_spec import AverageSpec
from model.layers.contract import Inputs, State, StepContext, Sublayer
from model.layers.position_wise.feed_forward import FeedForward
from model.settings import ModelSettings


class Average(Sublayer):
    """g_t = FFN(1/t Σ_{k ≤ t} y_k), then a gating layer: i_t ⊙ y_t + f_t ⊙ g_t with i_t, f_t = σ(W [y_t; g_t]).

    y_t is the input at position t. The source is Zhang et al. 2018, "Accelerating Neural Transformer via an Average
    Attention Network" (ACL P18-1166), section 3.1. A search stores one sum per beam.
    """

    def __init__(self, config: ModelSettings, options: AverageSpec) -> None:
        super().__init__()
        width = config.d_model
        self.feed_forward = FeedForward(config, options) if options.feed_forward else None
        self.gates = nn.Linear(2 * width, 2 * width, bias=config.bias) if options.gated else None

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        count_T1 = torch.arange(1, x_BTD.shape[1] + 1, device=x_BTD.device).unsqueeze(-1)
        g_BTD = x_BTD.cumsum(1) / count_T1
        if self.feed_forward is not None:
            g_BTD = self.feed_forward(g_BTD, inputs)
        return self._gated(x_BTD, g_BTD)

    def _gated(self, x_D: Tensor, g_D: Tensor) -> Tensor:
        if self.gates is None:
            return g_D
        input_D, forget_D = self.gates(torch.cat([x_D, g_D], -1)).sigmoid().chunk(2, -1)
        output_D: Tensor = input_D * x_D + forget_D * g_D
        return output_D

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D). The state is the sum of the inputs so far, (B, K, D)."""
        sum_RD = x_RD + state.of_parents("sum", now) if now.time else x_RD
        state.put({"sum": sum_RD.view(-1, now.beam_size, sum_RD.shape[-1])})
        g_RD = sum_RD / (now.time + 1)
        if self.feed_forward is not None:
            g_RD = self.feed_forward.step(g_RD, state, now)
        return self._gated(x_RD, g_RD)
