"""Sub-layers that read one position of the encoder's output for each position of the decoder.

Shapes: B sentences, T positions, S source, M = S, K beams, R = B·K rows of a search, D d_model.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.memory.one_position_spec import LastStateSpec, SamePositionSpec
from model.settings import ModelSettings


class LastState(Sublayer):
    """y_t = W m_S for every t, where m_S is the last vector of the encoder's output.

    m_S is the summary c of Cho et al. 2014 (arXiv 1406.1078, section 2.2), which every step of the decoder reads. In
    Sutskever et al. 2014 (arXiv 1409.3215, section 2), only the decoder's first state reads it. With `backward`, the
    first vector m_1 replaces m_S.
    """

    def __init__(self, config: ModelSettings, options: LastStateSpec) -> None:
        super().__init__()
        self.backward_ = options.backward
        self.project = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        return self._context(inputs).unsqueeze(1).expand(x_BTD.shape)

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return W m_S, (B, D)."""
        return State(context=self._context(inputs))

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        return state["context"].repeat_interleave(now.beam_size, 0)

    def _context(self, inputs: Inputs) -> Tensor:
        memory_BSD = inputs.memory_BMD
        assert memory_BSD is not None
        context_BD: Tensor
        if self.backward_:
            context_BD = self.project(memory_BSD[:, 0])
        elif inputs.memory_keep_BM is None:
            context_BD = self.project(memory_BSD[:, -1])
        else:
            last_B = inputs.memory_keep_BM.sum(1) - 1
            context_BD = self.project(memory_BSD[torch.arange(len(last_B), device=last_B.device), last_B])
        return context_BD


class SamePosition(Sublayer):
    """y_t = W m_t, and 0 after the end of the source.

    In this way, ByteNet stacks its decoder on its encoder (Kalchbrenner et al. 2016, arXiv 1610.10099, sections 3.1 and
    3.2). Unlike this class, ByteNet also computes the encoder after the end of the source, up to the expected length of
    the target.
    """

    def __init__(self, config: ModelSettings, options: SamePositionSpec) -> None:
        super().__init__()
        self.project = nn.Linear(config.d_model, config.d_model, bias=False)

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        return self._aligned(inputs, x_BTD.shape[1])

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return W m, (B, T, D)."""
        return State(aligned=self._aligned(inputs, shape.max_steps))

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        return state["aligned"][:, now.time].repeat_interleave(now.beam_size, 0)

    def _aligned(self, inputs: Inputs, length: int) -> Tensor:
        assert inputs.memory_BMD is not None
        projected_BSD = self.project(inputs.memory_BMD)
        if inputs.memory_keep_BM is not None:
            projected_BSD = projected_BSD * inputs.memory_keep_BM.unsqueeze(-1)
        return F.pad(projected_BSD, (0, 0, 0, max(0, length - projected_BSD.shape[1])))[:, :length]
