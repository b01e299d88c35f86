"""A network's tensors under the names, and in the order of rows, of one of Hugging Face's architectures.

Shapes: D d_model, H heads, G heads of keys and values, K d_k, W vocabulary.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.evaluation.trained.huggingface.layouts import GPT1, GPT2, LLAMA, NEOX, QWEN3, Layout
from model.config import ModelConfig
from model.network import EncoderDecoder
from model.parts.positions import LearnedPositions, sinusoids

Named = Iterator[tuple[str, Tensor]]


@torch.no_grad()
def tensors_of(layout: Layout, model: EncoderDecoder, positions: int) -> dict[str, Tensor]:
    """All tensors. `positions`: rows of a table of positions, where the architecture has one."""
    embedding, size = model.target_embedding, model.vocab_size
    looked_up, output = embedding.matrix[:size] * embedding.scale, model.output_weight[:size]
    names = _NAMES[layout.model_type]
    found = {names.embedding: looked_up}
    if names.positions:
        found[names.positions] = _positions(model, positions)
    for number, layer in enumerate(model.decoder):
        found |= {
            f"{names.layers}.{number}.{name}": value for name, value in _LAYERS[layout.model_type](layer, model.config)
        }
    if names.final_norm:
        found |= _of(names.final_norm, model.decoder.final_norm)
    if not tied(model):
        found[names.output] = output
    return {name: value.detach().clone().contiguous() for name, value in found.items()}


def tied(model: EncoderDecoder) -> bool:
    """Whether one matrix serves the look-up and the softmax: with a factor on the look-up, two are written."""
    return model.output_weight.equal(model.target_embedding.matrix) and model.target_embedding.scale == 1


class _Names(NamedTuple):
    embedding: str
    positions: str
    layers: str
    final_norm: str
    output: str


_LLAMA = _Names("model.embed_tokens.weight", "", "model.layers", "model.norm", "lm_head.weight")
_NAMES = {
    GPT1.model_type: _Names(
        "transformer.tokens_embed.weight", "transformer.positions_embed.weight", "transformer.h", "", "lm_head.weight"
    ),
    GPT2.model_type: _Names(
        "transformer.wte.weight", "transformer.wpe.weight", "transformer.h", "transformer.ln_f", "lm_head.weight"
    ),
    NEOX.model_type: _Names(
        "gpt_neox.embed_in.weight", "", "gpt_neox.layers", "gpt_neox.final_layer_norm", "embed_out.weight"
    ),
    LLAMA.model_type: _LLAMA,
    QWEN3.model_type: _LLAMA,
}  # fmt: skip


def _positions(model: EncoderDecoder, rows: int) -> Tensor:
    """A table of what positions add: trained, sinusoids, or zeros."""
    config, places = model.config, model.decoder.positions
    if isinstance(places, LearnedPositions):
        table: Tensor = places.weight[:rows] * places.scale
        return table
    return sinusoids(rows, config.d_model) if config.positions == "sinusoidal" else torch.zeros(rows, config.d_model)


def _of(name: str, module: Any, *, transposed: bool = False, bias: bool | None = None) -> dict[str, Tensor]:
    """Weight and bias of a matrix or a norm; `bias`: zeros for one that it has not, if True."""
    weight = module.weight.T if transposed else module.weight
    found = {f"{name}.weight": weight}
    own = getattr(module, "bias", None)
    if own is not None or bias:
        found[f"{name}.bias"] = torch.zeros(module.weight.shape[0]) if own is None else own
    return found


def _projections(layer: Any, config: ModelConfig) -> tuple[list[Tensor], list[Tensor]]:
    """Weights and biases of queries, keys and values, each with the rows of all its heads: (H·K, D), (H·K,)."""
    attention = layer.self_attention
    G, K = attention.kv_heads, config.d_k
    split = attention.split
    biases = attention.qkv.bias if config.bias else torch.zeros(attention.qkv.weight.shape[0])
    both = torch.cat([attention.qkv.weight, biases.unsqueeze(1)], 1).view(G, sum(split), -1)
    rows = [part.reshape(-1, K, part.shape[-1]) for part in torch.split(both, split, dim=1)]
    if config.positions == "rotary":
        order = _halves(config)
        rows[:2] = [part[:, order] for part in rows[:2]]
    flat = [part.flatten(0, 1) for part in rows]
    return [part[:, :-1] for part in flat], [part[:, -1] for part in flat]


def _halves(config: ModelConfig) -> Tensor:
    """Ours turns elements 2i and 2i + 1 together; there i is turned with i + half the width."""
    width = round(config.d_k * config.rotary_share)
    order = torch.arange(config.d_k)
    return torch.cat([order[:width:2], order[1:width:2], order[width:]])


def _gpt(layer: Any, config: ModelConfig) -> Named:
    """GPT-1 and GPT-2, which keep a matrix as (in, out)."""
    weights, biases = _projections(layer, config)
    yield "attn.c_attn.weight", torch.cat(weights).T
    yield "attn.c_attn.bias", torch.cat(biases)
    yield from _of("attn.c_proj", layer.self_attention.output, transposed=True, bias=True).items()
    yield from _of("mlp.c_fc", layer.feed_forward.inner, transposed=True, bias=True).items()
    yield from _of("mlp.c_proj", layer.feed_forward.outer, transposed=True, bias=True).items()
    yield from _norms(layer, "ln_1", "ln_2")


def _neox(layer: Any, config: ModelConfig) -> Named:
    """Queries, keys and values head by head, as here."""
    weights, biases = _projections(layer, config)
    heads, width = config.num_heads, config.d_k
    by_head = [part.view(heads, width, -1) for part in weights]
    yield "attention.query_key_value.weight", torch.cat(by_head, 1).flatten(0, 1)
    if config.bias:
        yield "attention.query_key_value.bias", torch.cat([part.view(heads, width) for part in biases], 1).flatten()
    yield from _of("attention.dense", layer.self_attention.output).items()
    yield from _of("mlp.dense_h_to_4h", layer.feed_forward.inner, bias=True).items()
    yield from _of("mlp.dense_4h_to_h", layer.feed_forward.outer, bias=True).items()
    yield from _norms(layer, "input_layernorm", "post_attention_layernorm")


def _llama(layer: Any, config: ModelConfig) -> Named:
    attention, feed_forward = layer.self_attention, layer.feed_forward
    for name, weight, bias in zip("qkv", *_projections(layer, config), strict=True):
        yield f"self_attn.{name}_proj.weight", weight
        if config.bias:
            yield f"self_attn.{name}_proj.bias", bias
    yield from _of("self_attn.o_proj", attention.output).items()
    if config.qk_norm:
        yield "self_attn.q_norm.weight", attention.query_norm.weight[_halves(config)]
        yield "self_attn.k_norm.weight", attention.key_norm.weight[_halves(config)]
    for name, matrix in (("gate", "inner"), ("up", "value"), ("down", "outer")):
        yield from _of(f"mlp.{name}_proj", getattr(feed_forward, matrix)).items()
    yield from _norms(layer, "input_layernorm", "post_attention_layernorm")


def _norms(layer: Any, first: str, second: str) -> Named:
    yield from _of(first, layer.self_attention_residual.norm).items()
    yield from _of(second, layer.feed_forward_residual.norm).items()


_LAYERS: dict[str, Callable[[Any, ModelConfig], Named]] = {
    GPT1.model_type: _gpt,
    GPT2.model_type: _gpt,
    NEOX.model_type: _neox,
    LLAMA.model_type: _llama,
    QWEN3.model_type: _llama,
}  # fmt: skip
