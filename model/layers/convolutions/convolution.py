"""Convolution over positions. Shapes: B sentences, T positions, R rows of a search, D d_model, k kernel."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.convolutions.convolution_spec import ConvolutionSpec
from model.settings import ModelSettings


class Convolution(Sublayer):
    """W [x_{t−r}; …; x_t] + b over windows of k inputs, as in ConvS2S (Gehring et al. 2017, section 3.2).

    The output is linear, as that of attention. Options: gated, A ⊗ σ(B), the gated linear unit of ConvS2S; rectified,
    max(0, ·); dilation (van den Oord et al. 2016, "WaveNet", section 2.1); separable, a depthwise and then a pointwise
    convolution (Kaiser et al. 2017, "Depthwise Separable Convolutions for Neural Machine Translation"), with one bias
    after both. Inputs outside of the sentence are zeros.
    """

    def __init__(self, config: ModelSettings, options: ConvolutionSpec) -> None:
        super().__init__()
        width = config.d_model
        self.kernel, self.dilation, self.reach = options.kernel, options.dilation, options.reach
        self.gated, self.rectified = options.gated, options.rectified
        taps = 1 if options.separable else options.kernel
        # One product with the inputs of a window side by side: on a processor faster than nn.Conv1d (torch 2.13).
        self.window = nn.Linear(taps * width, (2 if options.gated else 1) * width, bias=config.bias)
        self.depthwise = (
            nn.Conv1d(width, width, options.kernel, dilation=options.dilation, groups=width, bias=False)
            if options.separable
            else None
        )

    def initialise(self) -> None:
        """Draw the depthwise kernels Glorot-uniform with the fans of one channel, k and k."""
        if self.depthwise is not None:
            bound = (3 / self.kernel) ** 0.5
            nn.init.uniform_(self.depthwise.weight, -bound, bound)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D)."""
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
        """Apply the product and the activation: (…, C) → (…, D), C inputs of a window side by side."""
        output_D: Tensor = self.window(windows_C)
        if self.rectified:
            return output_D.relu()  # not in place, as in feed_forward.py
        return F.glu(output_D) if self.gated else output_D

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return the inputs that later windows read, (B, K, reach, D): zeros before the first position."""
        weight = self.window.weight
        width = weight.shape[0] // (2 if self.gated else 1)
        return State(inputs=weight.new_zeros(shape.sentences, shape.beam_size, self.reach, width))

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D)."""
        inputs_RrD = torch.cat([state.of_parents("inputs", now), x_RD.unsqueeze(1)], 1)
        rows, _, width = inputs_RrD.shape
        state.put({"inputs": inputs_RrD[:, 1:].view(rows // now.beam_size, now.beam_size, self.reach, width)})
        taps_RkD = inputs_RrD[:, :: self.dilation]
        if self.depthwise is not None:
            return self._output(torch.einsum("rkd,dk->rd", taps_RkD, self.depthwise.weight[:, 0]))
        return self._output(taps_RkD.flatten(1))
