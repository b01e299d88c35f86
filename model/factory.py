"""From a configuration to a network with drawn weights."""

import torch
from torch import nn

from model.config import ModelConfig
from model.parts.embedding import Embedding
from model.parts.positions import LearnedPositions
from model.transformer import Transformer


def build_model(
    config: ModelConfig,
    vocab_size: int,
    source_vocab_size: int | None = None,
    *,
    device: torch.device | str | None = None,
) -> Transformer:
    """A Transformer over `vocab_size` pieces, in training mode, with weights drawn from torch's generator.

    `source_vocab_size`: of the source, where it is not the target's. Raises ValueError where one matrix serves both.

    Weights are drawn on the CPU and then moved, so that a seed gives the same ones on every device. On the meta
    device nothing is drawn. Raises ValueError for a vocabulary that is empty.
    """
    if vocab_size < 1:
        raise ValueError(f"vocab_size = {vocab_size}: a vocabulary needs at least one piece")
    if config.shared_vocabulary and source_vocab_size not in (None, vocab_size):
        raise ValueError(f"a shared vocabulary has one size, and not {source_vocab_size} and {vocab_size}")
    place = torch.device("cpu" if device is None else device)
    with torch.device("meta" if place.type == "meta" else "cpu"):
        model = Transformer(config, vocab_size, source_vocab_size)
    initialise(model)
    return model.to(place)


@torch.no_grad()
def initialise(model: Transformer) -> None:
    """tensor2tensor's start, as the paper gives none.

    Embeddings (learned positions alike) N(0, 1/√d_model); every other matrix Glorot-uniform,
    U(±√(6 / (fan_in + fan_out))); biases 0; LayerNorm 1 and 0. The fans are those of the matrix as it is held: q, k
    and v of self-attention are one matrix, as in tensor2tensor, and so start with 0.71 of the deviation that three
    separate ones would have (for d_k = d_v = d_model / h); k and v of cross-attention likewise with 0.82.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, Embedding):
            nn.init.normal_(module.weight[: module.vocab_size], std=module.weight.shape[1] ** -0.5)
            nn.init.zeros_(module.weight[module.vocab_size :])
        elif isinstance(module, LearnedPositions):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
