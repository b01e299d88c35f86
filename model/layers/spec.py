"""The kinds of sub-layer: names, options, settings, numbers of parameters and costs. Imports no torch.

A kind of sub-layer consists of two files in the same folder. NAME_spec.py has a subclass of `Spec`, and NAME.py has the
computation, a subclass of contract.Sublayer. An entry in `LAYERS` maps the name of the kind to its `Spec`.

Symbols in formulas: T positions of the sub-layer's sequence, S positions of the encoder's output, D d_model.
"""

import math
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from model.extensions import added, load
from model.settings import ModelSettings, Side
from model.strict import StrictModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.layers.contract import Sublayer


Length = TypeVar("Length", float, "NDArray[np.int64]")  # one length, or the lengths of many sentences


class Cost(NamedTuple):
    """Cost of one sub-layer for one sequence, without its residual connection and norm."""

    params: int  # trained weights
    flops: Any  # operations of a forward pass; only matrix products count; a multiply-add counts as two
    kept: Any  # number of values that the forward pass stores for the backward pass, besides the input
    active: int | None = None  # number of weights that one token uses; None if it uses all of them


class Spec(StrictModel):
    """Base class of the kinds of sub-layer. The fields of a subclass are the options of one sub-layer in a line.

    In a line, the brackets after a kind contain options and settings. The settings are those in `reads` and, unless
    `bare` is True, those in model.config.AROUND. A value in brackets replaces the setting for this sub-layer only.
    """

    computation: ClassVar[str] = ""  # module:class of the computation, which is built with (config, options)
    reads: ClassVar[tuple[str, ...]] = ()  # settings of ModelSettings that the sub-layer reads, besides d_model
    sides: ClassVar[tuple[Side, ...]] = ("encoder", "decoder")
    reads_memory: ClassVar[bool] = False  # whether the sub-layer reads the encoder's output
    joins_widths: ClassVar[bool] = False  # whether the input and the encoder's output may have different widths
    reads_distances: ClassVar[bool] = False  # whether the sub-layer uses position encodings inside attention
    attends: ClassVar[bool] = False  # whether `step` appends attention weights to StepContext.weights_LBKM
    compiles: ClassVar[bool] = True  # whether torch.compile can compile the sub-layer to one graph
    bare: ClassVar[bool] = False  # whether the sub-layer has no dropout, norm or residual connection

    # The program sets these two fields; they are not options. side: the stack that contains the sub-layer. other_width:
    # width of the encoder's output, or of the input of a projection (0 means d_model).
    side: Side = "encoder"
    other_width: int = 0

    def build(self, config: ModelSettings) -> "Sublayer":
        """Build the computation. Its weights are not drawn yet. This is the only method that imports torch."""
        module, _, name = self.computation.partition(":")
        sublayer: Sublayer = getattr(import_module(module), name)(config, self)
        return sublayer

    def reads_here(self, config: ModelSettings) -> tuple[str, ...]:
        """Return the names in `reads` that have an effect with these settings and options."""
        return self.reads

    def implied(self) -> dict[str, Any]:
        """Return the settings that the options fix for this sub-layer.

        A value of d_model is also the input width of the next sub-layer.
        """
        return {}

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for settings with which the sub-layer cannot be built."""

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost for a sequence of `length` positions and `memory` positions of the encoder's output."""
        raise NotImplementedError

    def sequential(self, length: int) -> int:
        """Return the number of sequential operations over `length` positions (Table 1).

        It is 0 if each position is computed independently.
        """
        return 0

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return the number of operations between an output and the input `distance` positions before it (Table 1).

        The result is inf if the output does not depend on this input. In decoders, `distance` is never negative. This
        implementation is for position-wise sub-layers.
        """
        return 0.0 if distance == 0 else math.inf

    def shared(self, config: ModelSettings) -> dict[str, int]:
        """Return the weights that all sub-layers of a stack share, as {name: number}. `cost` does not count them."""
        return {}


# Name of the kind → module:Spec. The module is imported when a line first names the kind.
LAYERS: dict[str, str] = {
    "self_attention": "model.layers.attention.attention_spec:SelfAttentionSpec",
    "cross_attention": "model.layers.attention.attention_spec:CrossAttentionSpec",
    "feed_forward": "model.layers.position_wise.feed_forward_spec:FeedForwardSpec",
    "rnn": "model.layers.recurrence.recurrent_spec:RNNSpec",
    "gru": "model.layers.recurrence.recurrent_spec:GRUSpec",
    "lstm": "model.layers.recurrence.recurrent_spec:LSTMSpec",
    "convolution": "model.layers.convolutions.convolution_spec:ConvolutionSpec",
    "average": "model.layers.attention.average_spec:AverageSpec",
    "experts": "model.layers.position_wise.experts_spec:ExpertsSpec",
    "last_state": "model.layers.memory.one_position_spec:LastStateSpec",
    "same_position": "model.layers.memory.one_position_spec:SamePositionSpec",
    "attentional_lstm": "model.layers.recurrence.attentional_lstm_spec:AttentionalLSTMSpec",
    "factorised_lstm": "model.layers.recurrence.factorised_lstm_spec:FactorisedLSTMSpec",
    "memory_network": "model.layers.memory.memory_network_spec:MemoryNetworkSpec",
    "neural_gpu": "model.layers.convolutions.neural_gpu_spec:NeuralGPUSpec",
    "projection": "model.layers.position_wise.projection_spec:ProjectionSpec",
}


def places() -> dict[str, str]:
    """Return {name: module:Spec} of all kinds: those of LAYERS, then those of extras and installed packages."""
    return {**LAYERS, **{name: place for name, place in added("layers").items() if name not in LAYERS}}


@cache
def spec_at(place: str) -> type[Spec]:
    """Import and return the class at module:Spec, a value of `places`. Raises ValueError if it is not usable."""
    try:
        found = load(place)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the layer at {place} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Spec)):
        raise ValueError(f"{place} is not a subclass of model.layers.spec.Spec")
    return found


def kinds() -> dict[str, type[Spec]]:
    """Return {name: class} of all kinds. This imports their `_spec` files."""
    return {name: spec_at(place) for name, place in places().items()}
