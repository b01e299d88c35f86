"""The interface of a sub-layer's computation: its inputs, its state during a search, and its methods.

Shapes: B sentences, T target positions, Q queries, M memory positions, K beams, R = B·K rows of a search, D d_model,
H heads, L layers. Masks: True = may attend. The masks keep_BT and memory_keep_BM are True at word pieces and False at
padding.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from model.layers.masks import blocking_bias


class Inputs(NamedTuple):
    """Inputs of a sub-layer besides x.

    For each mask there is also a bias, which is 0 where the mask is True and masks.BLOCKED elsewhere.
    """

    causal: bool  # position t may depend only on positions 0 … t
    keep_BT: Tensor | None = None  # False at padding; None if there is no padding or if the causal mask hides it
    bias_B11T: Tensor | None = None
    memory_BMD: Tensor | None = None  # the encoder's output; None in the encoder and in a language model
    memory_keep_BM: Tensor | None = None
    memory_bias_B11M: Tensor | None = None

    @classmethod
    def encoder(cls, keep_BT: Tensor | None, dtype: torch.dtype) -> "Inputs":
        """Return the inputs of an encoder's sub-layers. `dtype` is the type of the bias."""
        return cls(False, keep_BT, _bias(keep_BT, dtype))

    @classmethod
    def decoder(cls, memory_BMD: Tensor | None, memory_keep_BM: Tensor | None, dtype: torch.dtype) -> "Inputs":
        """Return the inputs of a decoder's sub-layers. `dtype` is the type of the bias."""
        return cls(True, None, None, memory_BMD, memory_keep_BM, _bias(memory_keep_BM, dtype))


def _bias(keep_BT: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return the bias of a mask, (B, 1, 1, T), the same for every head and query."""
    return None if keep_BT is None else blocking_bias(keep_BT[:, None, None, :], dtype)


class CacheShape(NamedTuple):
    """The size of a search, from which the sizes of caches follow."""

    sentences: int
    beam_size: int
    max_steps: int


class StepContext(NamedTuple):
    """One step of a search, which computes position `time` of every beam."""

    time: int
    beam_size: int
    parents_R: Tensor | None  # row at time − 1 that each beam continues; None for a single beam and at time 0
    bias_B1KM: Tensor | None  # bias over the (time, beam) slots so far, M = (time + 1)·K; None if no slot is blocked
    inputs: Inputs  # the inputs of all sentences of the search
    # Each sub-layer that attends to the source appends the mean of its heads' attention weights. None if the search
    # needs no attention weights.
    weights_LBKM: list[Tensor] | None = None


class State:
    """Named tensors that a sub-layer stores between steps. The first dimension of each tensor is the sentence."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors: dict[str, Tensor] = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the named tensors."""
        self.tensors.update(tensors)

    def keep(self, sentences: Tensor) -> None:
        """Keep only the sentences with these indices, in this order."""
        self.tensors = {name: tensor.index_select(0, sentences) for name, tensor in self.tensors.items()}

    def of_parents(self, name: str, now: StepContext) -> Tensor:
        """Return the tensor `name` of each beam's parent: (B, K, …) → (R, …)."""
        tensor_R = self.tensors[name].flatten(0, 1)
        return tensor_R if now.parents_R is None else tensor_R.index_select(0, now.parents_R)


class Sublayer(nn.Module):
    """Base class of sub-layer computations. `Spec.build` (layers/spec.py) calls the constructor with (config, options).

    `forward` computes all positions of whole sequences. `start` and `step` compute the same outputs one position at a
    time, for all beams of a search: row b·K + k of x is beam k of sentence b. parts/residual.py applies dropout,
    residual connection and norm outside the sub-layer. For every sub-layer, tests check that steps equal `forward`,
    that padding and later positions have no influence, and that a sentence has the same output alone and in a batch.
    """

    # The sequence to which the attention weights refer; None if the sub-layer has no attention weights.
    attends_to: ClassVar[Literal["itself", "source"] | None] = None

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D). The output at padding may be any finite number."""
        raise NotImplementedError

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return the state before the first step. Only called in decoders."""
        return State()

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position, (R, D) → (R, D), and update the state."""
        raise NotImplementedError

    def weights(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Return the attention weights of `forward`, (B, H, T, M). Only called if `attends_to` is set."""
        raise NotImplementedError

    def initialise(self) -> None:
        """Draw the weights that network.initialise does not draw, or that need another distribution.

        This method is called after all nn.Linear of the network, including this sub-layer's, have been drawn.
        """

    def shrink(self, factor: float) -> None:
        """Multiply the initial weights of all matrices by `factor` for DeepNorm.

        Attention sub-layers override this method, because DeepNorm does not change the projections to queries and keys.
        """
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
