"""Attention weights of a sentence pair, layer by layer and head by head (the paper's figures 3 to 5).

Shapes: B sentences (1 here), H heads, Q queries, M memory positions, D d_model.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID
from experiments.evaluation.in_batches import evaluating
from experiments.evaluation.trained.translator import Translator
from model.parts.masks import causal_bias
from model.sublayers.attention import CrossAttention, SelfAttention
from model.transformer import Transformer

KINDS = ("encoder", "decoder", "cross")


def attention_maps(translator: Translator, source: str, target: str | None = None) -> dict[str, Any]:
    """{"source": pieces, "target": pieces, "translation": text, "maps": {kind: layers × heads × rows × columns}}.

    The target is the translation unless given. Rows attend to columns: columns of encoder and cross attention are
    source pieces, those of the decoder the pieces that it has read (<s> first).
    """
    text = translator.translate([source])[0] if target is None else target
    source_ids = [*translator.source_tokenizer.encode(source), EOS_ID]
    target_ids = translator.target_tokenizer.encode(text)
    device = translator.device.torch_device
    with evaluating(translator.model), recording(translator.model) as found:
        memory_BSD = translator.model.encode(torch.tensor([source_ids], device=device))
        translator.model.decode(torch.tensor([[BOS_ID, *target_ids]], device=device), memory_BSD)
    return {
        "source": [*translator.source_tokenizer.pieces(source_ids[:-1]), "</s>"],
        "target": ["<s>", *translator.target_tokenizer.pieces(target_ids)],
        "translation": text,
        "maps": {kind: [weights.tolist() for weights in found[kind]] for kind in KINDS},
    }


@contextmanager
def recording(model: Transformer) -> Iterator[dict[str, list[Tensor]]]:
    """Record the weights of every attention in this context: kind → one (H, Q, M) per layer."""
    found: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    hooks = []
    for stack, name in ((model.encoder, "encoder"), (model.decoder, "decoder")):
        for module in stack.modules():
            if isinstance(module, SelfAttention):
                hooks.append(module.register_forward_pre_hook(_keep_self(found[name]), with_kwargs=True))
            elif isinstance(module, CrossAttention):
                hooks.append(module.register_forward_pre_hook(_keep_cross(found["cross"])))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _keep_self(found: list[Tensor]) -> Any:
    def hook(module: SelfAttention, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        q_BHQK, k_BHMK, _ = module.project(given[0])
        found.append(_weights(q_BHQK, k_BHMK, causal=bool(named.get("causal"))))

    return hook


def _keep_cross(found: list[Tensor]) -> Any:
    def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
        assert isinstance(module, CrossAttention)
        found.append(_weights(module.split_heads(module.query(given[0])), given[1][0], causal=False))

    return hook


def _weights(q_BHQK: Tensor, k_BHMK: Tensor, *, causal: bool) -> Tensor:
    """softmax(q kᵀ / √d_k) of one unpadded sentence, (H, Q, M)."""
    scores_HQM = (q_BHQK @ k_BHMK.mT)[0].float() * q_BHQK.shape[-1] ** -0.5
    if causal:
        scores_HQM = scores_HQM + causal_bias(scores_HQM.shape[-1], scores_HQM.dtype, scores_HQM.device)
    weights_HQM: Tensor = scores_HQM.softmax(-1).cpu()
    return weights_HQM
