"""Build a network with initialised weights from a configuration."""

import torch
from torch import nn

from model.config import ModelConfig
from model.network import EncoderDecoder
from model.parts.embedding import Embedding
from model.parts.positions import LearnedPositions
from model.stack import Stack
from model.sublayers.contract import Sublayer


def build_model(
    config: ModelConfig,
    vocab_size: int,
    source_vocab_size: int | None = None,
    *,
    device: torch.device | str | None = None,
) -> EncoderDecoder:
    """A network in training mode, its weights drawn from torch's default generator.

    vocab_size: pieces of the target, and of the source unless `source_vocab_size` is given.
    Weights are drawn on the CPU and then moved, so that a seed gives the same weights on every device. On the meta
    device nothing is drawn. Raises ValueError for an empty vocabulary, and for two sizes of a shared one.
    """
    if vocab_size < 1:
        raise ValueError(f"vocab_size = {vocab_size}: a vocabulary needs at least one piece")
    if config.shared_vocabulary and source_vocab_size not in (None, vocab_size):
        raise ValueError(f"a shared vocabulary has one size, found {source_vocab_size} and {vocab_size}")
    place = torch.device("cpu" if device is None else device)
    with torch.device("meta" if place.type == "meta" else "cpu"):
        model = EncoderDecoder(config, vocab_size, source_vocab_size)
    initialise(model)
    return model.to(place)


@torch.no_grad()
def initialise(model: EncoderDecoder) -> None:
    """Draw the weights as tensor2tensor does; the paper names no initialisation.

    Embeddings and learned positions N(0, 1/√d_model); every other matrix Glorot-uniform,
    U(±√(6 / (fan_in + fan_out))); biases 0; LayerNorm 1 and 0. The fans are those of the stored matrix: q, k and v of
    self-attention are one matrix, as in tensor2tensor, so they start with 0.71 of the deviation of three separate
    matrices (for d_k = d_v = d_model / h). k and v of cross-attention start with 0.82 of it.
    """
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, Embedding):
            module.initialise()
        elif isinstance(module, LearnedPositions):
            nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
        elif isinstance(module, Sublayer):
            module.initialise()
    for module in model.modules():  # once all are drawn
        if isinstance(module, Stack):
            module.shrink()
