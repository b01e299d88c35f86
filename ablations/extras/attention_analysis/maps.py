"""Attention weights of one sentence pair, for each layer and head (the paper's figures 3 to 5).

Shapes: B sentences (1 here), H heads, T queries, M memory positions, S source, D d_model.
"""

from typing import Any

import torch
from torch import Tensor

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID
from experiments.evaluation.likelihood import evaluating
from experiments.evaluation.translator import Translator
from model.layers.attention.watching import KINDS, watching


def attention_maps(translator: Translator, source: str, target: str | None = None) -> dict[str, Any]:
    """Return the weights of one sentence pair.

    Keys: "source" and "target" (pieces), "translation" (text), "maps" ({kind: layers × heads × rows × columns}).
    If `target` is None, the model translates the source. Rows are queries. Columns are the attended positions: source
    pieces for encoder and cross attention, the decoder's input pieces (<s> first) for decoder attention.
    """
    text = translator.translate([source])[0] if target is None else target
    source_ids = [*translator.source_tokenizer.encode(source), EOS_ID]
    target_ids = translator.target_tokenizer.encode(text)
    device = translator.device.torch_device
    maps: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}

    def see(kind: str, weights_BHTM: Tensor) -> None:
        maps[kind].append(weights_BHTM[0].cpu())  # the batch has one sentence

    with evaluating(translator.model), watching(translator.model, see):
        memory_BSD = translator.model.encode(torch.tensor([source_ids], device=device))
        translator.model.decode(torch.tensor([[BOS_ID, *target_ids]], device=device), memory_BSD)
    return {
        "source": [*translator.source_tokenizer.pieces(source_ids[:-1]), "</s>"],
        "target": ["<s>", *translator.target_tokenizer.pieces(target_ids)],
        "translation": text,
        "maps": {kind: [weights.tolist() for weights in maps[kind]] for kind in KINDS},
    }
