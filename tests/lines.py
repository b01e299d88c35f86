"""Draw random architectures from all sub-layers and settings, for tests of properties that hold for every network."""

import random
from typing import Any

from model.config import ModelConfig
from model.layers.spec import kinds
from model.settings import Side

SIZES: dict[str, Any] = {
    "num_layers": 2, "d_model": 8, "d_ff": 12, "num_heads": 2, "d_k": 4, "d_v": 4, "max_length": 16, "dropout": 0.0,
}  # fmt: skip
# The options that may follow each kind of sub-layer in brackets. A kind that is not listed has no options.
# fmt: off
OPTIONS: dict[str, list[str]] = {
    "self_attention": [
        "", "", "", "(num_heads=1)", "(d_k=3, d_v=5)", "(window=1)", "(window=4, kv_heads=1)", "(compatibility=dot)",
        "(compatibility=additive)", "(compatibility=bilinear)", "(qk_norm=true)", "(attention_gate=true)",
        "(bias=false)",
        "(position_clip=1, position_keys=false)", "(position_values=false)", "(rotary_share=0.5)",
        "(position_shared=false)",
    ],
    "cross_attention": [
        "", "", "(num_heads=4)", "(kv_heads=1, bias=false)", "(compatibility=additive, qk_norm=true)",
        "(num_heads=6, kv_heads=3, compatibility=bilinear, attention_gate=true)",
    ],
    "feed_forward": ["", "", "(d_ff=5)", "(bias=false)", "(activation=gelu)", "(activation=bilinear)"],
    "rnn": ["", "(bidirectional=true)", "(bias=false)", "(residual=false)"],
    "gru": ["", "(bidirectional=true)", "(bias=false)", "(backward=true)", "(columns=true, bias=false)"],
    "lstm": [
        "", "(bidirectional=true)", "(bias=false)", "(backward=true)", "(norm=none)", "(columns=true)",
        "(columns=true, backward=true)", "(units=11)", "(units=9, bias=false)", "(units=12, bidirectional=true)",
    ],
    "convolution": [
        "", "(kernel=1)", "(kernel=2)", "(kernel=5, gated=true)", "(dilation=3)", "(separable=true)",
        "(kernel=5, separable=true, gated=true, dilation=2)", "(kernel=2, dilation=3, bias=false)",
        "(rectified=true)", "(separable=true, rectified=true)",
    ],
    "average": ["", "(gated=false)", "(feed_forward=false)", "(feed_forward=false, gated=false)", "(d_ff=5)"],
    "experts": ["", "(count=1)", "(count=3, active=2, d_ff=5)", "(count=2, active=2, activation=swiglu)",
        "(count=3, active=2, gate=noisy_top_k)",
    ],
    "last_state": ["", "(backward=true)", "(norm=none)"],
    "same_position": ["(norm=post)", "(residual_scale=fast_forward, norm=none)"],
    "factorised_lstm": ["", "(rank=2)", "(bias=false)", "(residual=false)"],
    "projection": ["(width=6)", "(width=12, bias=false)"],
    "memory_network": ["", "(hops=1)", "(hops=2, norm=none)"],
    "neural_gpu": ["", "(kernel=1)", "(kernel=5)", "(steps=2)", "(bias=false)"],
    "attentional_lstm": ["", "(compatibility=dot)", "(compatibility=bilinear)", "(compatibility=additive, bias=false)"],
}
# fmt: on
# Values of network-wide settings other than the paper's.
SETTINGS: dict[str, list[Any]] = {
    "positions": ["learned", "none", "relative", "bias", "alibi", "rotary"],
    "position_clip": [0, 2],
    "position_buckets": [4, 6],
    "position_distance": [5],
    "window": [2, 5],
    "compatibility": ["dot", "additive", "bilinear"],
    "kv_heads": [1],
    "qk_norm": [True],
    "attention_gate": [True],
    "bias": [False],
    "activation": [
        "gelu",
        "swish",
        "relu2",
        "elu",
        "selu",
        "sigmoid",
        "softplus",
        "glu",
        "bilinear",
        "reglu",
        "geglu",
        "swiglu",
    ],
    "norm": ["pre", "sandwich", "none"],
    "norm_kind": ["rms", "scale"],
    "residual": [False],
    "residual_scale": [0.5**0.5, "deepnorm", "rezero", "fast_forward"],
    "memory_embeddings": [True],
    "embedding_norm": [True],
    "embedding_scale": [1.0],
    "embedding_size": [6],
    "fixnorm": [True],
    "tying": ["decoder", "inputs", "none"],
    "layer_groups": [1, 2],
    "layer_groups_in": ["encoder", "decoder"],
    "shared_vocabulary": [False],
    "softmax": ["sampled", "hierarchical"],
    "softmax_samples": [5],
    "encoder_layers": [1],
    "decoder_layers": [3],
}


def random_config(seed: int, **settings: Any) -> ModelConfig:
    """Return the configuration of a small random network. `settings` replace drawn values."""
    draw = random.Random(seed)
    while True:
        chosen = {name: draw.choice(values) for name, values in SETTINGS.items() if draw.random() < 0.25}
        lines = {"encoder": _line(draw, "encoder"), "decoder": _line(draw, "decoder")}
        try:
            return ModelConfig(**{**SIZES, **chosen, **lines, **settings})
        except ValueError:
            continue  # an invalid draw: a decoder that cannot read the source, or incompatible settings


def _line(draw: random.Random, side: Side) -> str:
    names = [name for name, kind in kinds().items() if side in kind.sides]

    def sublayer() -> str:
        name = draw.choice(names)
        return name + draw.choice(OPTIONS.get(name, [""]))

    groups = []
    for _ in range(draw.randint(1, 2)):
        inside = ", ".join(sublayer() for _ in range(draw.randint(1, 3)))
        if "projection" in inside:  # project back to d_model
            inside += ", projection(width=8)"
        groups.append(f"{draw.choice(['', 'N * ', '2 * '])}({inside})")
    return ", ".join(groups)
