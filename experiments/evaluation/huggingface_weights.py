"""A network as one of Hugging Face's architectures: config.json, and tensors under its names and in its order.

Shapes: D d_model, H heads, G heads of keys and values, K d_k, W vocabulary.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from experiments.errors import UserError
from model import architecture
from model.config import ModelConfig
from model.network import EncoderDecoder
from model.parts.positions import LearnedPositions, sinusoids
from model.parts.residual import NORM_EPSILON

# --- Which architecture a network equals, and its config.json
# Pre-norm with added positions (GPT-2), the same post-norm (GPT-1), pre-norm with rotary positions (GPT-NeoX), and
# RMSNorm with rotary positions and a gated feed-forward network (Llama; Qwen3 with norms on queries and keys).


PLAIN = {"relu": "relu", "gelu": "gelu", "swish": "silu", "relu2": "relu2", "sigmoid": "sigmoid"}
GATED = {"glu": "sigmoid", "bilinear": "linear", "reglu": "relu", "geglu": "gelu", "swiglu": "silu"}
ADDED = ("sinusoidal", "learned", "none")  # positions that a table of vectors expresses


@dataclass(frozen=True)
class Layout:
    """An architecture of transformers, and what a network needs to be one."""

    title: str
    model_type: str
    architecture: str
    norm: str
    norm_kind: str
    positions: tuple[str, ...]
    activations: Mapping[str, str]
    head_width_free: bool = False
    grouped_heads: bool = False  # fewer heads of keys and values
    qk_norm: bool = False

    def misfits(self, config: ModelConfig) -> Iterator[str]:
        """What of the network is not so in this architecture: a setting, its value, and what would fit."""

        def differs(name: str, wanted: str) -> str:
            return f"model.{name} = {getattr(config, name)} (it has {wanted})"

        if config.norm != self.norm:
            yield differs("norm", self.norm)
        if config.norm_kind != self.norm_kind:
            yield differs("norm_kind", self.norm_kind)
        if config.positions not in self.positions:
            yield differs("positions", ", ".join(self.positions))
        if config.activation not in self.activations:
            yield differs("activation", ", ".join(self.activations))
        if not self.head_width_free and config.num_heads * config.d_k != config.d_model:
            yield differs("d_k", f"d_model / num_heads = {config.d_model / config.num_heads:g}")
        if not self.grouped_heads and config.kv_heads not in (None, config.num_heads):
            yield differs("kv_heads", "as many as queries")
        if config.qk_norm != self.qk_norm:
            yield differs("qk_norm", str(self.qk_norm).lower())
        if self.model_type == "openai-gpt" and config.d_ff != 4 * config.d_model:
            yield differs("d_ff", f"4 · d_model = {4 * config.d_model}")
        if self.model_type in ("llama", "qwen3") and config.rotary_share != 1:
            yield differs("rotary_share", "1")
        if self.model_type == "qwen3" and config.bias:
            yield differs("bias", "false")


GPT2 = Layout("GPT-2", "gpt2", "GPT2LMHeadModel", "pre", "layer", ADDED, PLAIN)
GPT1 = Layout(
    "GPT-1", "openai-gpt", "OpenAIGPTLMHeadModel", "post", "layer", ADDED, {k: PLAIN[k] for k in ("relu", "swish")}
)
NEOX = Layout("GPT-NeoX", "gpt_neox", "GPTNeoXForCausalLM", "pre", "layer", ("rotary",), PLAIN)
LLAMA = Layout("Llama", "llama", "LlamaForCausalLM", "pre", "rms", ("rotary",), GATED, True, True)
QWEN3 = Layout("Qwen3", "qwen3", "Qwen3ForCausalLM", "pre", "rms", ("rotary",), GATED, True, True, True)
LAYOUTS = (GPT2, GPT1, NEOX, LLAMA, QWEN3)


def layout_of(config: ModelConfig, positions: int) -> Layout:
    """The architecture that the network equals. Raises UserError with the settings that none expresses.

    positions: the longest text that the exported model reads.
    """
    nowhere = list(_in_no_layout(config, positions))
    wrong, nearest = min(
        (([*nowhere, *layout.misfits(config)], layout) for layout in LAYOUTS), key=lambda found: len(found[0])
    )
    if not wrong:
        return nearest
    raise UserError(
        f"None of Hugging Face's architectures that are written here equals this network. The nearest is "
        f"{nearest.title}; it has not: {'; '.join(wrong)}. Leave out --format huggingface: the program's own "
        "folder holds any network."
    )


def _in_no_layout(config: ModelConfig, positions: int) -> Iterator[str]:
    for layer in architecture.layers(config, "decoder"):
        if [part.kind for part in layer] != ["self_attention", "feed_forward"] or any(
            part.config != config for part in layer
        ):
            yield f"model.decoder = {config.decoder} (it has N * (self_attention, feed_forward))"
            break
    if config.window is not None and config.window // 2 < positions - 1:
        yield f"model.window = {config.window} (it has none)"
    if config.d_k != config.d_v:
        yield f"model.d_v = {config.d_v} (it has d_k = {config.d_k})"
    for name, wanted in _NEUTRAL.items():
        if getattr(config, name) != wanted:
            yield f"model.{name} = {getattr(config, name)} (it has {'none' if wanted is None else str(wanted).lower()})"


_NEUTRAL: dict[str, Any] = {
    "compatibility": "scaled_dot", "attention_gate": False, "residual": True, "residual_scale": 1.0,
    "embedding_norm": False, "embedding_size": None,
}  # fmt: skip


def config_of(layout: Layout, config: ModelConfig, vocab_size: int, positions: int, *, tied: bool) -> dict[str, Any]:
    """config.json, in the names of transformers 4 and 5."""
    layers = len(architecture.layers(config, "decoder"))
    activation = layout.activations[config.activation]
    described: dict[str, Any] = {
        "architectures": [layout.architecture], "model_type": layout.model_type, "vocab_size": vocab_size,
        "tie_word_embeddings": tied, "dtype": "float32", "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    if layout in (GPT1, GPT2):
        return described | {
            "n_positions": positions, "n_embd": config.d_model, "n_layer": layers, "n_head": config.num_heads,
            "n_inner": config.d_ff, "layer_norm_epsilon": NORM_EPSILON, "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout, "attn_pdrop": config.attention_dropout,
            ("afn" if layout is GPT1 else "activation_function"): activation,
        }  # fmt: skip
    described |= {
        "hidden_size": config.d_model, "intermediate_size": config.d_ff, "num_hidden_layers": layers,
        "num_attention_heads": config.num_heads, "hidden_act": activation, "max_position_embeddings": positions,
        "attention_bias": config.bias, "attention_dropout": config.attention_dropout,
    }  # fmt: skip
    if layout is NEOX:
        share = round(config.d_k * config.rotary_share) / config.d_k
        return described | {
            "layer_norm_eps": NORM_EPSILON, "use_parallel_residual": False, "hidden_dropout": config.dropout,
            "rotary_pct": share, "rotary_emb_base": 10_000,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share},
        }  # fmt: skip
    return described | {
        "rms_norm_eps": NORM_EPSILON, "num_key_value_heads": config.kv_heads or config.num_heads,
        "head_dim": config.d_k, "rope_theta": 10_000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        **({"mlp_bias": config.bias} if layout is LLAMA else {}),
    }  # fmt: skip


# --- Names and order of rows of the tensors


Named = Iterator[tuple[str, Tensor]]


@torch.no_grad()
def tensors_of(layout: Layout, model: EncoderDecoder, positions: int) -> dict[str, Tensor]:
    """All tensors. `positions`: rows of a table of positions, where the architecture has one."""
    embedding, size = model.target_embedding, model.vocab_size
    looked_up, output = embedding.matrix[:size] * embedding.scale, model.output_weight[:size]
    names = _NAMES[layout.model_type]
    tensors = {names.embedding: looked_up}
    if names.positions:
        tensors[names.positions] = _positions(model, positions)
    for number, layer in enumerate(model.decoder):
        tensors |= {
            f"{names.layers}.{number}.{name}": value for name, value in _LAYERS[layout.model_type](layer, model.config)
        }
    if names.final_norm:
        tensors |= _of(names.final_norm, model.decoder.final_norm)
    if not tied(model):
        tensors[names.output] = output
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


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
    tensors = {f"{name}.weight": weight}
    own = getattr(module, "bias", None)
    if own is not None or bias:
        tensors[f"{name}.bias"] = torch.zeros(module.weight.shape[0]) if own is None else own
    return tensors


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
