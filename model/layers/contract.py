"""What the network asks of a sub-layer, and what every sub-layer may use: masks, auxiliary losses, autocast.

Shapes: B sentences, T target positions, Q queries, M memory positions, K beams, R = B·K rows of a search, D d_model,
H heads. Masks: True = may attend, or: is a piece.
"""

import contextlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Inputs(NamedTuple):
    """What a sub-layer sees besides x. Each mask comes also as a bias: 0 where it is True, BLOCKED elsewhere."""

    causal: bool  # position t sees 0 … t alone
    keep_BT: Tensor | None = None  # True at pieces, False at padding; None: no padding, or hidden by causality
    bias_B11T: Tensor | None = None
    memory_BMD: Tensor | None = None  # the encoder's output; None in the encoder, and where there is none
    memory_keep_BM: Tensor | None = None
    memory_bias_B11M: Tensor | None = None

    @classmethod
    def encoder(cls, keep_BT: Tensor | None, dtype: torch.dtype) -> "Inputs":
        return cls(False, keep_BT, _bias(keep_BT, dtype))

    @classmethod
    def decoder(cls, memory_BMD: Tensor | None, memory_keep_BM: Tensor | None, dtype: torch.dtype) -> "Inputs":
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
    """The step of a search: position `time` of every beam is computed."""

    time: int
    beam_size: int
    parents_R: Tensor | None  # the row at time − 1 that each beam continues; None: its own (one beam, or time 0)
    bias_B1KM: Tensor | None  # over the (time, beam) slots so far, M = (time + 1)·K; None: all are its own past
    inputs: Inputs  # of the search's sentences
    weights_LBKM: list[Tensor] | None = None  # each attention to the source adds its heads' mean; None: nobody asks


class State:
    """What a sub-layer keeps between steps: tensors by name, whose first dimension is the sentence."""

    def __init__(self, **tensors: Tensor) -> None:
        self.tensors: dict[str, Tensor] = dict(tensors)

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]

    def put(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors.update(tensors)

    def keep(self, sentences: Tensor) -> None:
        """Keep these sentences alone, in this order."""
        self.tensors = {name: tensor.index_select(0, sentences) for name, tensor in self.tensors.items()}

    def of_parents(self, name: str, now: StepContext) -> Tensor:
        """A tensor (B, K, …) as each beam's parent left it, by rows: (R, …)."""
        tensor_R = self.tensors[name].flatten(0, 1)
        return tensor_R if now.parents_R is None else tensor_R.index_select(0, now.parents_R)


class Sublayer(nn.Module):
    """One kind of computation. It is built with (config, options) of its kind (layers/spec.py).

    `forward` computes all positions of whole sequences. `start` and `step` compute the same one position at a time, for
    all beams of a search: row b·K + k of x is beam k of sentence b. Dropout, residual and norm stand outside
    (parts/residual.py). Tests hold every sub-layer to: steps equal `forward`; padding and later positions have no
    influence; a sentence alone equals the same sentence in a batch.
    """

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """(B, T, D) → (B, T, D). The output at padding may be any finite number."""
        raise NotImplementedError

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """The state before the first step; only in decoders."""
        return State()

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """(R, D) → (R, D); changes the state."""
        raise NotImplementedError

    def initialise(self) -> None:
        """Draw weights that the general rule (network.initialise) does not know."""

    def shrink(self, factor: float) -> None:
        """Multiply the first weights of all matrices, but those of queries and keys, for DeepNorm."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                parameter.mul_(factor)


# --- Attention masks as numbers added to the scores before the softmax (section 3.2.3)


# exp(score + BLOCKED) is exactly 0 beside any allowed score, and BLOCKED is finite in fp32, bf16 and fp64: a row with
# every position blocked becomes an even average instead of NaN.
BLOCKED = -1e30


def blocking_bias(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `mask` is True (may attend), BLOCKED elsewhere; same shape."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, BLOCKED)


def causal_bias(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(T, T): position t may attend to 0 … t, "preventing positions from attending to subsequent positions"."""
    return torch.full((length, length), BLOCKED, dtype=dtype, device=device).triu(1)


# --- Losses that sub-layers add to the training loss


_collections: list[list[Tensor]] = []  # of the contexts that are open, the innermost last


@contextmanager
def collecting() -> Iterator[list[Tensor]]:
    """What `add` is given in this context: numbers with gradients, in units of the loss of a token."""
    losses: list[Tensor] = []
    _collections.append(losses)
    try:
        yield losses
    finally:
        _collections.pop()


def add(loss: Tensor) -> None:
    """Add to what is collected; without anyone who collects, it is lost."""
    if _collections:
        _collections[-1].append(loss)


# --- Switching autocast off where types are chosen by hand


def without_autocast(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Autocast off for this device."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return contextlib.nullcontext()
