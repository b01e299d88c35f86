"""The kinds of sub-layer by name, and what planning needs of each: options, settings, parameters and cost. No torch.

A kind of sub-layer consists of two files that lie side by side: NAME_spec.py has a subclass of `Spec`, and NAME.py has
the computation, a subclass of contract.Sublayer. A line in `LAYERS` names the kind.

Shapes in formulas: T positions of the sub-layer's sequence, S positions of the encoder's output, D d_model.
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
    flops: Any  # of a forward pass; a multiplication and an addition are two, and only matrix products count
    kept: Any  # values that the forward pass keeps for the backward pass, besides the input
    active: int | None = None  # weights that take part in the computation of one token; None: all


class Spec(StrictModel):
    """Options of one sub-layer of a line; each kind is a subclass. The fields of the subclass are its options.

    An option that has the name of a setting in `reads` replaces that setting for this sub-layer.
    """

    computation: ClassVar[str] = ""  # module:class that computes it, built with (config, options)
    reads: ClassVar[tuple[str, ...]] = ()  # settings of ModelSettings that the sub-layer reads, besides d_model
    sides: ClassVar[tuple[Side, ...]] = ("encoder", "decoder")
    reads_memory: ClassVar[bool] = False  # whether it reads the encoder's output
    joins_widths: ClassVar[bool] = False  # whether the encoder's output may have another width than its input
    reads_distances: ClassVar[bool] = False  # whether it can have positions that only attention sees
    attends: ClassVar[bool] = False  # whether it tells a search its weights of the source (StepContext.weights_LBKM)
    compiles: ClassVar[bool] = True  # whether torch's compiler makes one graph of it
    bare: ClassVar[bool] = False  # whether no dropout, norm or residual connection surrounds it

    # These two follow from the line and are no options. side: the stack that holds the sub-layer. other_width: width of
    # the encoder's output, or of the input of a projection (0: d_model).
    side: Side = "encoder"
    other_width: int = 0

    def build(self, config: ModelSettings) -> "Sublayer":
        """Return the computation, its weights not yet drawn. The only method that imports torch."""
        module, _, name = self.computation.partition(":")
        sublayer: Sublayer = getattr(import_module(module), name)(config, self)
        return sublayer

    def reads_here(self, config: ModelSettings) -> tuple[str, ...]:
        """Return the names in `reads` that matter with these settings and options."""
        return self.reads

    def implied(self) -> dict[str, Any]:
        """Return settings that follow from the options and replace those of the network from this sub-layer on."""
        return {}

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for settings with which the sub-layer cannot be built."""

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost for a sequence of `length` positions and `memory` positions of the encoder's output."""
        raise NotImplementedError

    def sequential(self, length: int) -> int:
        """Return the operations over `length` positions that must follow one another (Table 1).

        0 if each position is computed by itself.
        """
        return 0

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return the operations between an output and the input `distance` positions before it (Table 1).

        inf where the output does not depend on this input. A decoder's sub-layer is not asked for later positions. The
        default is that of position-wise sub-layers.
        """
        return 0.0 if distance == 0 else math.inf

    def shared(self, config: ModelSettings) -> dict[str, int]:
        """Return the number of weights that all sub-layers of a stack share, by name. `cost` does not count them."""
        return {}


# --- The kinds, by the name that a line of text uses


# Name → module:Spec. The module is imported when a line first names the kind.
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
    """Return name → module:Spec of all kinds: those of LAYERS, then those of extras and installed packages."""
    return {**LAYERS, **{name: place for name, place in added("layers").items() if name not in LAYERS}}


@cache
def spec_at(place: str) -> type[Spec]:
    """Return the class at module:Spec, a value of `places`. Raises ValueError if there is none."""
    try:
        found = load(place)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the layer at {place} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Spec)):
        raise ValueError(f"{place} is not a subclass of model.layers.spec.Spec")
    return found


def kinds() -> dict[str, type[Spec]]:
    """Return all kinds by name. It imports the files of their options."""
    return {name: spec_at(place) for name, place in places().items()}
