"""The interface of a sub-layer's computation: what it gets, what it keeps during a search, what it has to compute.

Shapes: B sentences, T target positions, Q queries, M memory positions, K beams, R = B·K rows of a search, D d_model,
H heads. Masks: True = may attend, or: is a piece.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from model.layers.masks import blocking_bias


class Inputs(NamedTuple):
    """Inputs of a sub-layer besides x. Each mask comes also as a bias: 0 where it is True, masks.BLOCKED elsewhere."""

    causal: bool  # position t may depend on positions 0 … t alone
    keep_BT: Tensor | None = None  # True at pieces, False at padding; None: no padding, or hidden by causality
    bias_B11T: Tensor | None = None
    memory_BMD: Tensor | None = None  # the encoder's output; None in the encoder and in a language model
    memory_keep_BM: Tensor | None = None
    memory_bias_B11M: Tensor | None = None

    @classmethod
    def encoder(cls, keep_BT: Tensor | None, dtype: torch.dtype) -> "Inputs":
        """Return the inputs of an encoder's sub-layers. dtype: of the bias."""
        return cls(False, keep_BT, _bias(keep_BT, dtype))

    @classmethod
    def decoder(cls, memory_BMD: Tensor | None, memory_keep_BM: Tensor | None, dtype: torch.dtype) -> "Inputs":
        """Return the inputs of a decoder's sub-layers. dtype: of the bias."""
        return cls(True, None, None, memory_BMD, memory_keep_BM, _bias(memory_keep_BM, dtype))


def _bias(keep_BT: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(B, 1, 1, T), the same for every head and query."""
    return None if keep_BT is None else blocking_bias(keep_BT[:, None, None, :], dtype)


class CacheShape(NamedTuple):
    """The size of a search."""

    sentences: int
    beam_size: int
    max_steps: int


class StepContext(NamedTuple):
    """One step of a search: position `time` of every beam is computed."""

    time: int
    beam_size: int
    parents_R: Tensor | None  # the row at time − 1 that each beam continues; None: the same row (one beam, or time 0)
    bias_B1KM: Tensor | None  # over the (time, beam) slots so far, M = (time + 1)·K; None: a beam may attend to all
    inputs: Inputs  # of the search's sentences
    # Each attention to the source appends the mean of its heads' weights; None where the search does not need them.
    weights_LBKM: list[Tensor] | None = None


class State:
    """State of a sub-layer between steps: tensors by name, whose first dimension is the sentence."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors: dict[str, Tensor] = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the named tensors."""
        self.tensors.update(tensors)

    def keep(self, sentences: Tensor) -> None:
        """Keep these sentences alone, in this order."""
        self.tensors = {name: tensor.index_select(0, sentences) for name, tensor in self.tensors.items()}

    def of_parents(self, name: str, now: StepContext) -> Tensor:
        """Return a tensor (B, K, …) as each beam's parent left it, by rows: (R, …)."""
        tensor_R = self.tensors[name].flatten(0, 1)
        return tensor_R if now.parents_R is None else tensor_R.index_select(0, now.parents_R)


class Sublayer(nn.Module):
    """The computation of a kind of sub-layer, built with (config, options) by `build` of its kind (layers/spec.py).

    `forward` computes all positions of whole sequences. `start` and `step` compute the same one position at a time, for
    all beams of a search: row b·K + k of x is beam k of sentence b. Dropout, residual and norm are applied outside
    (parts/residual.py). Tests check of every sub-layer: steps equal `forward`; padding and later positions have no
    influence; a sentence alone equals the same sentence in a batch.
    """

    attends_to: ClassVar[Literal["itself", "source"] | None] = None  # what `weights` are over; None: it has none

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D). The output at padding may be any finite number."""
        raise NotImplementedError

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return the state before the first step; only called in decoders."""
        return State()

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D); changes the state."""
        raise NotImplementedError

    def weights(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Return the attention weights of `forward`, (B, H, T, M); only called if `attends_to` is set."""
        raise NotImplementedError

    def initialise(self) -> None:
        """Draw the weights that are in no module that network.initialise draws."""

    def shrink(self, factor: float) -> None:
        """Multiply the first weights of all matrices, except those of queries and keys, for DeepNorm."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)
