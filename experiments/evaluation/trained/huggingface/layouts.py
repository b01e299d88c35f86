"""Which of Hugging Face's architectures a network equals, and its config.json.

Pre-norm with added positions (GPT-2), the same post-norm (GPT-1), pre-norm with rotary positions (GPT-NeoX), and
RMSNorm with rotary positions and a gated feed-forward network (Llama; Qwen3 with norms on queries and keys).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.errors import UserError
from model import architecture
from model.config import ModelConfig
from model.parts.norms import NORM_EPSILON

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
    found: dict[str, Any] = {
        "architectures": [layout.architecture], "model_type": layout.model_type, "vocab_size": vocab_size,
        "tie_word_embeddings": tied, "dtype": "float32", "bos_token_id": 2, "eos_token_id": 2, "pad_token_id": 0,
    }  # fmt: skip
    if layout in (GPT1, GPT2):
        return found | {
            "n_positions": positions, "n_embd": config.d_model, "n_layer": layers, "n_head": config.num_heads,
            "n_inner": config.d_ff, "layer_norm_epsilon": NORM_EPSILON, "embd_pdrop": config.dropout,
            "resid_pdrop": config.dropout, "attn_pdrop": config.attention_dropout,
            ("afn" if layout is GPT1 else "activation_function"): activation,
        }  # fmt: skip
    found |= {
        "hidden_size": config.d_model, "intermediate_size": config.d_ff, "num_hidden_layers": layers,
        "num_attention_heads": config.num_heads, "hidden_act": activation, "max_position_embeddings": positions,
        "attention_bias": config.bias, "attention_dropout": config.attention_dropout,
    }  # fmt: skip
    if layout is NEOX:
        share = round(config.d_k * config.rotary_share) / config.d_k
        return found | {
            "layer_norm_eps": NORM_EPSILON, "use_parallel_residual": False, "hidden_dropout": config.dropout,
            "rotary_pct": share, "rotary_emb_base": 10_000,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": share},
        }  # fmt: skip
    return found | {
        "rms_norm_eps": NORM_EPSILON, "num_key_value_heads": config.kv_heads or config.num_heads,
        "head_dim": config.d_k, "rope_theta": 10_000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        **({"mlp_bias": config.bias} if layout is LLAMA else {}),
    }  # fmt: skip
