"""Convolution over positions.

Shapes: B sentences, T positions, K beams, R = B·K rows of a search, D d_model, k kernel, r inputs that a window covers,
C inputs of the matrix.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.convolutions.convolution_spec import ConvolutionSpec
from model.settings import ModelSettings


class Convolution(Sublayer):
    """W [x_{t−r}; …; x_t] + b over windows of k inputs, as in ConvS2S (Gehring et al. 2017, section 3.2).

    By default the output is linear, as in attention. Inputs outside the sentence are zeros. Options:

    - gated: A ⊗ σ(B), the gated linear unit of ConvS2S; A and B are the two halves of the output.
    - rectified: max(0, ·).
    - dilation: see van den Oord et al. 2016, "WaveNet", section 2.1.
    - separable: a depthwise and then a pointwise convolution (Kaiser et al. 2017, "Depthwise Separable Convolutions for
      Neural Machine Translation"), with one bias after both.
    """

    def __init__(self, config: ModelSettings, options: ConvolutionSpec) -> None:
        super().__init__()
        width = config.d_model
        self.kernel, self.dilation, self.reach = options.kernel, options.dilation, options.reach
        self.gated, self.rectified = options.gated, options.rectified
        taps = 1 if options.separable else options.kernel
        # One product with the concatenated inputs of a window is faster than nn.Conv1d on a CPU (torch 2.13).
        self.window = nn.Linear(taps * width, (2 if options.gated else 1) * width, bias=config.bias)
        self.depthwise = (
            nn.Conv1d(width, width, options.kernel, dilation=options.dilation, groups=width, bias=False)
            if options.separable
            else None
        )

    def initialise(self) -> None:
        """Draw the depthwise kernels from the Glorot uniform distribution with fan_in = fan_out = k."""
        if self.depthwise is not None:
            bound = (3 / self.kernel) ** 0.5
            nn.init.uniform_(self.depthwise.weight, -bound, bound)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        positions = x_BTD.shape[1]
        if inputs.keep_BT is not None:
            x_BTD = x_BTD.masked_fill(~inputs.keep_BT.unsqueeze(-1), 0)
        before = self.reach if inputs.causal else self.reach // 2
        x_BTD = F.pad(x_BTD, (0, 0, before, self.reach - before))
        if self.depthwise is not None:
            return self._output(self.depthwise(x_BTD.transpose(1, 2)).transpose(1, 2))
        starts = range(0, self.reach + 1, self.dilation)
        return self._output(torch.cat([x_BTD[:, start : start + positions] for start in starts], -1))

    def _output(self, windows_C: Tensor) -> Tensor:
        """Apply the product and the activation: (…, C) → (…, D), where C = k·D (or D if separable)."""
        output_D: Tensor = self.window(windows_C)
        if self.rectified:
            return output_D.relu()  # not in place, for the reason given in activations.py
        return F.glu(output_D) if self.gated else output_D

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return zeros in place of the inputs before the first position, (B, K, reach, D)."""
        weight = self.window.weight
        width = weight.shape[0] // (2 if self.gated else 1)
        return State(inputs=weight.new_zeros(shape.sentences, shape.beam_size, self.reach, width))

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        inputs_RrD = torch.cat([state.of_parents("inputs", now), x_RD.unsqueeze(1)], 1)
        rows, _, width = inputs_RrD.shape
        state.put({"inputs": inputs_RrD[:, 1:].view(rows // now.beam_size, now.beam_size, self.reach, width)})
        taps_RkD = inputs_RrD[:, :: self.dilation]
        if self.depthwise is not None:
            return self._output(torch.einsum("rkd,dk->rd", taps_RkD, self.depthwise.weight[:, 0]))
        return self._output(taps_RkD.flatten(1))
