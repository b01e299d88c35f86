"""Active memory: the Extended Neural GPU (Kaiser & Bengio 2016, arXiv 1610.08613).

A gated unit of convolutions changes all positions of a memory s at once. It is defined as follows, where * is a
convolution over positions:

    CGRU(s, p) = g ⊙ s + (1 − g) ⊙ tanh(U * (r ⊙ s) + W * p + B),
    g = σ(U' * s + W' * p + B'),    r = σ(U'' * s + W'' * p + B'')

An encoder starts with s_0 = x. It applies the unit without p once for each word piece, or `steps` times.
A decoder starts with d_0, the encoder's output, and reads a tape p of its inputs so far: d_t = CGRU(d_{t−1}, p_t).
The first places of p_t hold x_0 … x_t. The output y_t is d_t at place t. Places outside the source are zeros.
There are two differences from the paper: the memory has the height 1 (4 in the paper), and a decoder's memory has all
places that can influence an output.

Shapes: B sentences, T positions, S source, L places of the tape, K beams, R = B·K rows, D d_model, k kernel,
G gates (2·D), M = S.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.convolutions.neural_gpu_spec import NeuralGPUSpec
from model.settings import ModelSettings


class NeuralGPU(Sublayer):
    """The gated unit CGRU, applied repeatedly with the same weights.

    Each convolution is one matrix product with the concatenated inputs of a window of k positions.
    """

    def __init__(self, config: ModelSettings, options: NeuralGPUSpec) -> None:
        super().__init__()
        self.kernel, self.steps, width = options.kernel, options.steps, config.d_model
        self.reach = options.reach
        self.gates = nn.Linear(self.kernel * width, 2 * width, bias=config.bias)
        self.candidate = nn.Linear(self.kernel * width, width, bias=config.bias)
        decodes = options.side == "decoder"
        self.tape = nn.Linear(self.kernel * width, 3 * width, bias=False) if decodes else None

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        return self._encode(x_BTD, inputs.keep_BT) if self.tape is None else self._decode(x_BTD, inputs)

    def _encode(self, s_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
        if keep_BT is None:
            keep_BT = s_BTD.new_ones(s_BTD.shape[:2], dtype=torch.bool)
        keep_BT1 = keep_BT.unsqueeze(-1)
        s_BTD = s_BTD.masked_fill(~keep_BT1, 0)
        steps_B11 = keep_BT1.sum(1, keepdim=True) if self.steps is None else self.steps
        for step in range(self.steps or s_BTD.shape[1]):
            s_BTD = torch.where(keep_BT1 & (step < steps_B11), self._unit(s_BTD, None), s_BTD)
        return s_BTD

    def _decode(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        d_BLD, outputs = self._memory(inputs, x_BTD.shape[1]), []
        for time in range(x_BTD.shape[1]):
            p_BLD = F.pad(x_BTD[:, : time + 1], (0, 0, 0, d_BLD.shape[1] - time - 1))
            d_BLD = self._unit(d_BLD, p_BLD)
            outputs.append(d_BLD[:, time])
        return torch.stack(outputs, 1)

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return d_0 and an empty tape for each beam, (B, K, L, D)."""
        d_BLD = self._memory(inputs, shape.max_steps)
        d_BKLD = d_BLD.unsqueeze(1).expand(-1, shape.beam_size, -1, -1)
        return State(memory=d_BKLD, tape=torch.zeros_like(d_BKLD))

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        d_RLD, p_RLD = (state.of_parents(name, now) for name in ("memory", "tape"))
        p_RLD = p_RLD.clone()
        p_RLD[:, now.time] = x_RD
        d_RLD = self._unit(d_RLD, p_RLD)
        both = {"memory": d_RLD, "tape": p_RLD}
        state.put({name: y_RLD.view(-1, now.beam_size, *y_RLD.shape[1:]) for name, y_RLD in both.items()})
        return d_RLD[:, now.time]

    def _memory(self, inputs: Inputs, steps: int) -> Tensor:
        """Return d_0 (B, L, D): the encoder's output at all places that influence an output within `steps` steps."""
        memory_BSD = inputs.memory_BMD
        assert memory_BSD is not None
        if inputs.memory_keep_BM is not None:
            memory_BSD = memory_BSD.masked_fill(~inputs.memory_keep_BM.unsqueeze(-1), 0)
        places = steps * (1 + self.reach)
        return F.pad(memory_BSD, (0, 0, 0, max(0, places - memory_BSD.shape[1])))[:, :places]

    def _unit(self, s_BLD: Tensor, p_BLD: Tensor | None) -> Tensor:
        """Return CGRU(s, p), or CGRU(s) without a tape."""
        gates_BLG, read_BLD = self.gates(self._windows(s_BLD)), 0
        if self.tape is not None and p_BLD is not None:
            of_gates_BLG, read_BLD = self.tape(self._windows(p_BLD)).split([gates_BLG.shape[-1], s_BLD.shape[-1]], -1)
            gates_BLG = gates_BLG + of_gates_BLG
        g_BLD, r_BLD = gates_BLG.sigmoid().chunk(2, -1)
        new_BLD = (self.candidate(self._windows(r_BLD * s_BLD)) + read_BLD).tanh()
        changed_BLD: Tensor = g_BLD * s_BLD + (1 - g_BLD) * new_BLD
        return changed_BLD

    def _windows(self, s_BLD: Tensor) -> Tensor:
        """Concatenate the k inputs around each place, with zeros outside: (B, L, D) → (B, L, k·D)."""
        padded = F.pad(s_BLD, (0, 0, self.kernel // 2, self.kernel // 2))
        return torch.cat([padded[:, start : start + s_BLD.shape[1]] for start in range(self.kernel)], -1)
