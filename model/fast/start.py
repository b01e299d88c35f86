"""Where the quick form of a search applies: Transformers of the paper's three sub-layers, with its sizes free.

Shapes: B sentences, S source, D d_model.
"""

from collections.abc import Iterable

from torch import nn

from model import architecture
from model.config import ModelConfig
from model.fast.caches import DecoderState, LayerCache
from model.fast.folded import FoldedAttention
from model.fast.stepping import step_weights
from model.parts.embedding import Embedding
from model.parts.masks import blocking_bias
from model.stack import Stack
from model.sublayers.attention import CrossAttention
from model.sublayers.contract import Given, Room

_LAYER = ("self_attention", "cross_attention", "feed_forward")
# Settings that the quick form knows, or that the encoder alone reads. Any other must have the paper's value.
_KNOWN = frozenset({
    "encoder", "decoder", "encoder_layers", "decoder_layers", "num_layers", "d_model", "d_ff", "num_heads", "d_k",
    "d_v", "dropout", "attention_dropout", "activation_dropout", "max_length", "shared_vocabulary",
    "memory_embeddings",
})  # fmt: skip
_VALUES = {"norm": ("post", "pre"), "positions": ("sinusoidal", "learned", "none"), "tying": ("all", "decoder")}


def applies(config: ModelConfig) -> bool:
    """Whether the quick form computes this decoder."""
    for name, field in ModelConfig.model_fields.items():
        if name not in _KNOWN and getattr(config, name) not in _VALUES.get(name, (field.default,)):
            return False
    layers = architecture.layers(config, "decoder")
    return all(_plain(layer, config) for layer in layers)


def _plain(layer: Iterable[architecture.Sublayer], config: ModelConfig) -> bool:
    parts = tuple(layer)
    return tuple(part.kind for part in parts) == _LAYER and all(part.config == config for part in parts)


def quick_state(
    network: nn.Module, decoder: Stack, embedding: Embedding, given: Given, room: Room, config: ModelConfig
) -> DecoderState:
    """The state of a quick search; `network` is the owner of the weights."""
    memory_BSD, source_mask_BS = given.memory_BMD, given.memory_keep_BM
    assert memory_BSD is not None
    output_WD = embedding.weight[: embedding.vocab_size]
    int8 = embedding.product is not None
    weights = step_weights(network, decoder.layers, output_WD, config, int8=int8)
    dtype = weights.attention_dtype
    folds = source_mask_BS is None and weights.folds(*memory_BSD.shape[:2])
    caches = []
    for layer in decoder.layers:
        attention = layer.cross_attention
        assert isinstance(attention, CrossAttention)
        cache = LayerCache.start(*attention.keys_values(memory_BSD), room.beam_size, room.max_steps, dtype)
        if folds:
            cache.folded = FoldedAttention(attention, cache.memory_keys[0], cache.memory_values[0])
        caches.append(cache)
    positions_TD = decoder.positions(memory_BSD.new_zeros(1, room.max_steps, memory_BSD.shape[2]))[0]
    bias = None if source_mask_BS is None else blocking_bias(source_mask_BS[:, None, None, :], dtype)
    return DecoderState(weights, caches, bias, positions_TD, room.beam_size, embedding, decoder.final_norm)
