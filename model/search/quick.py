"""A faster search for decoders with the paper's sub-layers, of any size. It uses fewer and larger operations.

stepwise.py searches with all other decoders. The tests compare the results of both searches.

Shapes: B sentences, S source, M = S, T time steps, D d_model, W vocabulary.
"""

from torch import nn

from model.config import ModelConfig
from model.layers.attention.multi_head import CrossAttention
from model.layers.contract import CacheShape, Inputs
from model.layers.masks import blocking_bias
from model.parts.embedding import Embedding
from model.search.quick_caches import LayerCache
from model.search.quick_decoder import DecoderState, step_weights
from model.stack import Stack

_LAYER = ("self_attention", "cross_attention", "feed_forward")
# Settings that may have any value: the quick search supports all values, or only the encoder or training reads the
# setting. The settings in _VALUES may have the listed values. All others must have their default.
_KNOWN = frozenset({
    "encoder", "decoder", "encoder_layers", "decoder_layers", "num_layers", "d_model", "d_ff", "num_heads", "d_k",
    "d_v", "dropout", "attention_dropout", "activation_dropout", "max_length", "shared_vocabulary",
    "memory_embeddings", "softmax_samples",
})  # fmt: skip
_VALUES = {
    "norm": ("post", "pre"), "positions": ("sinusoidal", "learned", "none"), "tying": ("all", "decoder"),
    "softmax": ("full", "sampled"),
}  # fmt: skip


def applies(config: ModelConfig) -> bool:
    """Return whether the quick search supports this decoder."""
    for name, field in ModelConfig.model_fields.items():
        if name not in _KNOWN and getattr(config, name) not in _VALUES.get(name, (field.default,)):
            return False
    return all(
        tuple(part.kind for part in layer) == _LAYER and all(part.config == config for part in layer)
        for layer in config.layers("decoder")
    )


def quick_state(
    network: nn.Module, decoder: Stack, embedding: Embedding, inputs: Inputs, shape: CacheShape, config: ModelConfig
) -> DecoderState:
    """Return the state of a quick search. `network` is the module that contains all weights."""
    memory_BSD, source_mask_BS = inputs.memory_BMD, inputs.memory_keep_BM
    assert memory_BSD is not None
    output_WD = embedding.weight[: embedding.vocab_size]
    weights = step_weights(network, decoder.layers, output_WD, config)
    dtype = weights.attention_dtype
    caches = []
    for layer in decoder.layers:
        attention = layer.cross_attention
        assert isinstance(attention, CrossAttention)
        caches.append(LayerCache.start(*attention.keys_values(memory_BSD), shape.beam_size, shape.max_steps, dtype))
    positions_TD = decoder.positions(memory_BSD.new_zeros(1, shape.max_steps, memory_BSD.shape[2]))[0]
    bias = None if source_mask_BS is None else blocking_bias(source_mask_BS[:, None, None, :], dtype)
    return DecoderState(weights, caches, bias, positions_TD, shape.beam_size, embedding, decoder.final_norm)
