"""Copy the weights of our network into Hugging Face's MarianMTModel, to compare the two implementations.

Both are post-norm Transformers with sinusoids and with shared embeddings scaled by √d_model. In our network, sines and
cosines alternate, and the norms have another epsilon. The copy in Marian gets our positions and our epsilon. The module
needs the package transformers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID
from experiments.device import Device
from model.config import ModelConfig
from model.parts.norms import NORM_EPSILON
from model.parts.positions import sinusoids

LONGEST = 512
AT_ONCE = 256  # sentences per batch
BESIDES = {  # side → pairs of our name and Marian's name of a module
    "encoder": (("self_attention_residual.norm", "self_attn_layer_norm"),),
    "decoder": (
        ("self_attention_residual.norm", "self_attn_layer_norm"),
        ("cross_attention.query", "encoder_attn.q_proj"),
        ("cross_attention.output", "encoder_attn.out_proj"),
        ("cross_attention_residual.norm", "encoder_attn_layer_norm"),
    ),
}
BOTH = (
    ("self_attention.output", "self_attn.out_proj"),
    ("feed_forward.inner", "fc1"),
    ("feed_forward.outer", "fc2"),
    ("feed_forward_residual.norm", "final_layer_norm"),
)


def marian_config(config: ModelConfig, vocabulary: int, dropout: float) -> Any:
    """Return Marian's configuration with our sizes."""
    from transformers import MarianConfig

    sizes = {
        f"{side}_{name}": getattr(config, ours)
        for side in ("encoder", "decoder")
        for name, ours in (("layers", "num_layers"), ("ffn_dim", "d_ff"), ("attention_heads", "num_heads"))
    }
    return MarianConfig(
        vocab_size=vocabulary,
        decoder_vocab_size=vocabulary,
        d_model=config.d_model,
        dropout=dropout,
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        share_encoder_decoder_embeddings=True,
        tie_word_embeddings=True,
        pad_token_id=PAD_ID,
        bos_token_id=BOS_ID,
        eos_token_id=EOS_ID,
        decoder_start_token_id=BOS_ID,
        forced_eos_token_id=None,
        max_position_embeddings=LONGEST,
        attn_implementation="sdpa",
        **sizes,
    )


class Marian:
    """MarianMTModel with our weights. If the device's precision is "bf16", the weights are converted to bf16."""

    def __init__(self, config: ModelConfig, vocabulary: int, model: nn.Module, device: Device) -> None:
        from transformers import MarianMTModel

        self._device = device
        network = MarianMTModel(marian_config(config, vocabulary, 0.0))
        found = network.state_dict()
        found |= _renamed(model.state_dict(), config, vocabulary)
        table = sinusoids(LONGEST, config.d_model)
        found |= {f"model.{side}.embed_positions.weight": table for side in ("encoder", "decoder")}
        network.load_state_dict(found)
        for module in network.modules():
            if isinstance(module, nn.LayerNorm):
                module.eps = NORM_EPSILON
        dtype = torch.bfloat16 if device.precision == "bf16" else torch.float32
        self._network = network.to(device.torch_device, dtype).eval()

    def generate(self, sources: Sequence[Sequence[int]], beam_size: int, extra: int) -> list[tuple[int, ...]]:
        """Return the best hypothesis of each source, without EOS and with a length penalty of 0.

        The sources are sorted by length and decoded in batches of AT_ONCE. A hypothesis has at most `extra` pieces more
        than the longest source of its batch.
        """
        order = sorted(range(len(sources)), key=lambda index: len(sources[index]), reverse=True)
        results: list[tuple[int, ...]] = [()] * len(sources)
        for start in range(0, len(order), AT_ONCE):
            batch = order[start : start + AT_ONCE]
            longest = len(sources[batch[0]]) + 1
            rows = [[*sources[i], EOS_ID, *[PAD_ID] * (longest - len(sources[i]) - 1)] for i in batch]
            ids = torch.tensor(rows, device=self._device.torch_device)
            with torch.inference_mode():
                found = self._network.generate(
                    input_ids=ids,
                    attention_mask=(ids != PAD_ID).long(),
                    num_beams=beam_size,
                    do_sample=False,
                    length_penalty=0.0,
                    max_new_tokens=longest + extra,
                )
            for index, pieces in zip(batch, found[:, 1:].tolist(), strict=True):
                end = pieces.index(EOS_ID) if EOS_ID in pieces else len(pieces)
                results[index] = tuple(pieces[:end])
        return results


def _renamed(ours: dict[str, Tensor], config: ModelConfig, vocabulary: int) -> dict[str, Tensor]:
    """Return our weights under Marian's names."""
    embedding = ours["embeddings.shared.weight"][:vocabulary]
    tied = ("model.shared", "model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head")
    found = {f"{name}.weight": embedding for name in tied}
    for side, besides in BESIDES.items():
        for layer in range(config.num_layers):
            here, there = f"{side}.layers.{layer}", f"model.{side}.layers.{layer}"
            for kind in ("weight", "bias"):
                for our_name, name in (*BOTH, *besides):
                    found[f"{there}.{name}.{kind}"] = ours[f"{here}.{our_name}.{kind}"]
                parts = _apart(ours[f"{here}.self_attention.qkv.{kind}"], config.num_heads, 3)
                found |= {f"{there}.self_attn.{n}_proj.{kind}": part for n, part in zip("qkv", parts, strict=True)}
                if side == "decoder":
                    parts = _apart(ours[f"{here}.cross_attention.key_value.{kind}"], config.num_heads, 2)
                    found |= {
                        f"{there}.encoder_attn.{n}_proj.{kind}": part for n, part in zip("kv", parts, strict=True)
                    }
    return found


def _apart(joined: Tensor, heads: int, count: int) -> tuple[Tensor, ...]:
    """Split our joined projection. Its rows are ordered by head: q, k and v of the first head, then of the second."""
    by_head = joined.view(heads, count, -1, *joined.shape[1:])
    return tuple(part.flatten(0, 1) for part in by_head.unbind(1))
