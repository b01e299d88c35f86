"""The kinds of sub-layer by the name that a line of text uses. Imports no torch.

The value is module:Spec. The module is imported when a line first names the kind.
"""

from functools import cache

from model.extensions import added, load
from model.layers.spec import Spec

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
def spec(place: str) -> type[Spec]:
    """Return the class at module:Spec, a value of `places`. Raises ValueError if there is none."""
    try:
        found = load(place)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"the layer at {place} cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Spec)):
        raise ValueError(f"{place} is not a subclass of model.layers.spec.Spec")
    return found


def kinds() -> dict[str, type[Spec]]:
    """Return all kinds by name; imports the files of their options."""
    return {name: spec(place) for name, place in places().items()}
