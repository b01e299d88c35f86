"""The configuration of MarianMTModel for the scripts that run in the environment of Hugging Face transformers."""

from typing import Any

from transformers import MarianConfig


def config(sizes: dict[str, int], **more: Any) -> MarianConfig:
    """Return a configuration with our sizes under Marian's names. `more` are further settings of a script."""
    stack = {
        f"{side}_{name}": sizes[ours]
        for side in ("encoder", "decoder")
        for name, ours in (("layers", "num_layers"), ("ffn_dim", "d_ff"), ("attention_heads", "num_heads"))
    }
    shape = {"vocab_size": sizes["vocab_size"], "d_model": sizes["d_model"]}
    return MarianConfig(activation_function="relu", scale_embedding=True, **shape, **stack, **more)
