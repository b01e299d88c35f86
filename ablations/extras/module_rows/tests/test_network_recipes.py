"""Lines of network-rows.md on tiny random networks of Hugging Face and timm, against the same change by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ablations.extras.module_rows.client.modules.ablate import ablate

PIECES = torch.randint(5, 60, (2, 7), generator=torch.Generator().manual_seed(0))
PICTURES = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
SIZES = {"vocab_size": 64}


class Zeros(nn.Module):
    def forward(self, x: Tensor | None = None, *_: Any, hidden_states: Tensor | None = None, **__: Any) -> Any:
        return torch.zeros_like(hidden_states if x is None else x), None


def gpt2() -> Any:
    tf = pytest.importorskip("transformers")
    return tf.GPT2LMHeadModel(tf.GPT2Config(n_embd=16, n_layer=4, n_head=4, n_positions=32, use_cache=False, **SIZES))


def bert() -> Any:
    tf = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 32}
    return tf.BertModel(tf.BertConfig(**sizes, **SIZES))


def vit() -> Any:
    timm = pytest.importorskip("timm")
    sizes = {"img_size": 32, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **sizes)


def _attention_of_gpt2(model: Any) -> None:
    for block in model.transformer.h[2:]:
        block.attn = Zeros()


def _relu(model: Any) -> None:
    for block in model.transformer.h:
        block.mlp.act = nn.ReLU()


def _head_of_vit(model: Any) -> None:
    for block in model.blocks:
        block.attn.proj.weight.data[:, 8:16] = 0


CASES: list[tuple[Any, str, Any]] = [
    (gpt2, "head.2 of transformer.h.1.attn -> zero",
     lambda m: m.transformer.h[1].attn.c_proj.weight.data[8:12].zero_()),
    (gpt2, "transformer.h[2:].attn -> zero", _attention_of_gpt2),
    (gpt2, "transformer.h[-2:] -> remove", lambda m: setattr(m.transformer, "h", m.transformer.h[:2])),
    (gpt2, "transformer.h.*.mlp.act -> torch.nn:ReLU()", _relu),
    (bert, "head[1:] of encoder.layer.2.attention -> zero",
     lambda m: m.encoder.layer[2].attention.output.dense.weight.data[:, 4:].zero_()),
    (bert, "encoder.layer[2:] -> remove", lambda m: setattr(m.encoder, "layer", m.encoder.layer[:2])),
    (vit, "head.1 of blocks.*.attn -> zero", _head_of_vit),
]  # fmt: skip


@pytest.mark.parametrize(("make", "line", "by_hand"), CASES, ids=[line for _, line, _ in CASES])
def test_a_line_gives_the_same_bits_as_the_change_by_hand(make: Any, line: str, by_hand: Any) -> None:
    outputs = []
    for change in (lambda model: ablate(model, [line]), by_hand):
        torch.manual_seed(0)
        model = make().eval()
        change(model)
        with torch.no_grad():
            output = model(PICTURES if make is vit else PIECES)
        outputs.append(output if isinstance(output, Tensor) else output[0])
    assert torch.equal(*outputs)
