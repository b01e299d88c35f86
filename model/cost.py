"""Parameters, arithmetic and memory of a network, computed from its configuration alone.

Imports no torch. One multiplication and one addition count as two floating-point operations. Only matrix products are
counted, not norms, softmax, dropout or embedding look-ups. Each kind of sub-layer computes its cost in its `_spec` file
under model/layers.
"""

from collections.abc import Iterator
from typing import Any

from model.config import ModelConfig, SublayerSpec
from model.layers.spec import Cost, Length
from model.settings import SIDES, ModelSettings, Side, class_sizes

TRAINING = 3  # a forward and a backward pass together cost as much as three forward passes
STREAM_BYTES = 4  # the residual stream stays in fp32, also under autocast


def _costs(config: ModelConfig, source: Length, target: Length) -> Iterator[tuple[SublayerSpec, Length, Side, Cost]]:
    """Yield every sub-layer with the length of its sequence, its side and its cost."""
    for side, length in zip(SIDES, (source, target), strict=True):
        for layer in config.layers(side):
            for part in layer:
                yield part, length, side, part.options.cost(part.config, length, source, side)


def num_params(config: ModelConfig, vocab_size: int, source_vocab_size: int | None = None) -> int:
    """Return the number of trained weights (the column "params" of Table 3). Padding rows of embeddings do not count.

    vocab_size: size of the target vocabulary, and of the source vocabulary unless `source_vocab_size` is given.
    source_vocab_size: size of the source vocabulary; ignored if source and target share one vocabulary.
    """
    total = _embeddings(config, vocab_size, source_vocab_size or vocab_size)
    total += _classes(config, vocab_size) * _output_width(config)
    for side in SIDES:
        if getattr(config, side):  # a language model has no encoder
            total += _stack_params(config, side)
    return total


def _stack_params(config: ModelConfig, side: Side) -> int:
    """Return the number of trained weights of a stack: its layers, learned positions, and norms at both ends."""
    total = 0
    shared: dict[str, int] = {}
    for part in _distinct_sublayers(config, side):
        total += part.options.cost(part.config, 1, 1, side).params + _connection_params(part.config)
        shared |= part.options.shared(part.config)
    total += sum(shared.values())
    if config.positions == "learned":
        total += config.max_length * config.d_model
    if config.embedding_norm:
        total += _norm_params(config)
    if config.norm in ("pre", "sandwich"):
        total += _norm_params(config)
    return total


def _distinct_sublayers(config: ModelConfig, side: Side) -> list[SublayerSpec]:
    """Return the sub-layers of all layers. Layers that share weights are included only once."""
    own = dict(zip(config.groups(side), config.layers(side), strict=True))
    return [part for layer in own.values() for part in layer]


_NORMS = {"post": 1, "pre": 1, "sandwich": 2, "none": 0}  # number of norms around a sub-layer


def _norm_params(config: ModelSettings) -> int:
    """Return the number of trained weights of one norm."""
    if config.norm_kind == "scale":
        return 1
    return 2 * config.d_model if config.norm_kind == "layer" else config.d_model


def _connection_params(config: ModelSettings) -> int:
    """Return the number of trained weights in a sub-layer's norms and residual connection."""
    rezero = 1 if config.residual and config.residual_scale == "rezero" else 0
    return _NORMS[config.norm] * _norm_params(config) + rezero + _fast_forward_params(config)


def _fast_forward_params(config: ModelSettings) -> int:
    """Return the number of weights of a fast-forward connection, or 0 for another connection.

    The number of multiplications per position is the same.
    """
    return 2 * config.d_model**2 if config.residual and config.residual_scale == "fast_forward" else 0


def _embeddings(config: ModelConfig, target: int, source: int) -> int:
    """Return the number of weights of the embeddings and the softmax.

    target, source: number of word pieces of the target and source vocabularies.
    """
    width = config.embedding_size or config.d_model
    widening = width * config.d_model if config.embedding_size else 0  # a matrix from width to d_model
    if config.tying == "inputs":  # one embedding matrix, and a softmax matrix of width d_model
        return target * (width + config.d_model) + widening
    rows = target
    widenings = 2  # one for the target embedding, one for the softmax
    if config.encoder and (config.tying != "all" or not config.shared_vocabulary):
        rows += source
        widenings += 1
    if config.tying == "none":
        rows += target
    return rows * width + widenings * widening


def active_params(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of weights that one token uses: `num_params` without the experts that the token does not use.

    If several layers share experts, the count assumes that a token uses the same experts in each of them.
    """
    parts = [(part, side) for side in SIDES for part in _distinct_sublayers(config, side)]
    costs = [part.options.cost(part.config, 1, 1, side) for part, side in parts]
    idle = sum(cost.params - cost.active for cost in costs if cost.active is not None)
    return num_params(config, vocab_size) - idle


def forward_flops(config: ModelConfig, vocab_size: int, source_length: Length, target_length: Length) -> Length:
    """Return the operations of one forward pass over S source and T target pieces.

    The operations include the logits (2·T·D·V, where D is the width of the softmax's matrix).
    """
    layers = sum(_layer_flops(config, source_length, target_length).values())
    factors: Any = 0  # multiplications of the matrices between the embeddings' width and d_model
    if config.embedding_size:
        looked_up = source_length + target_length if config.encoder else target_length
        narrowed = 0 if config.tying == "inputs" else target_length  # positions that are narrowed before the softmax
        factors = (looked_up + narrowed) * config.embedding_size * config.d_model
    rows = vocab_size + _classes(config, vocab_size)
    total: Length = layers + 2 * (target_length * _output_width(config) * rows + factors)
    return total


def _layer_flops(config: ModelConfig, source_length: Length, target_length: Length) -> dict[Side, Length]:
    """Return the operations that the layers of each side take in a forward pass."""
    sums: dict[Side, Any] = dict.fromkeys(SIDES, 0)
    for part, length, side, cost in _costs(config, source_length, target_length):
        sums[side] = sums[side] + cost.flops + 2 * length * _fast_forward_params(part.config)
    return sums


def _output_width(config: ModelConfig) -> int:
    """Return the width of the softmax's matrix."""
    return config.d_model if config.tying == "inputs" else config.embedding_size or config.d_model


def _classes(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of classes of a hierarchical softmax, or 0 for another softmax."""
    return class_sizes(vocab_size)[1] if config.softmax == "hierarchical" else 0


def training_flops(
    config: ModelConfig, vocab_size: int, source_length: Length, target_length: Length, samples: int = 0
) -> Length:
    """Return the operations of a forward and a backward pass: three times those of a forward pass.

    A sampled or hierarchical softmax computes fewer logits in training. With `layer_drop`, a layer's cost is multiplied
    by the probability that the layer is computed. samples: number of outputs drawn per source if the loss is the
    expected GLEU (`sampling_flops`).
    """
    forward = forward_flops(config, vocab_size, source_length, target_length)
    if config.layer_drop:
        forward = forward - config.layer_drop * sum(_layer_flops(config, source_length, target_length).values())
    saved = 0
    if config.softmax == "sampled":
        saved = vocab_size - min(config.softmax_samples + 1, vocab_size)
    elif config.softmax == "hierarchical":
        saved = vocab_size - class_sizes(vocab_size)[0]
    likelihood: Length = TRAINING * (forward - 2 * target_length * _output_width(config) * saved)
    if not samples:
        return likelihood
    return likelihood + sampling_flops(config, vocab_size, source_length, target_length, samples)


def sampling_flops(
    config: ModelConfig, vocab_size: int, source_length: Length, target_length: Length, samples: int
) -> Length:
    """Return the operations of the expected GLEU's gradient: `samples` outputs are drawn, then scored.

    Drawing costs a forward pass; scoring costs a forward and a backward pass. The source is encoded once for drawing
    and once for scoring. A drawn output is assumed to have the length of its reference, because its length is not known
    before training.
    """
    encoder = _layer_flops(config, source_length, target_length)["encoder"]
    pair = forward_flops(config, vocab_size, source_length, target_length)
    total: Length = (1 + TRAINING) * (encoder + samples * (pair - encoder))
    return total


def flops_per_token(
    config: ModelConfig, vocab_size: int, source_length: float, target_length: float, samples: int = 0
) -> float:
    """Return the training operations per target piece."""
    return training_flops(config, vocab_size, source_length, target_length, samples) / target_length


def activation_bytes(
    config: ModelConfig, sentences: int, source_length: int, target_length: int, *, value_bytes: int = 4
) -> int:
    """Return the bytes that the forward pass keeps for the backward pass, from embeddings to the last hidden state.

    value_bytes: bytes per operand of a matrix product (2 under bf16 autocast, 4 in fp32).
    Logits, loss, weights, bf16 copies of weights and mask biases are not counted. The fused kernels of "sdpa" use less
    memory, because they store no attention weights.
    """
    narrow: float = 0
    wide: float = 0
    for part, length, _, cost in _costs(config, source_length, target_length):
        # A sub-layer stores its input and the dropout mask with value_bytes per value. LayerNorm stores its input, the
        # mean and the deviation with STREAM_BYTES per value.
        narrow += cost.kept + 2 * config.d_model * length
        if _fast_forward_params(part.config):  # the connection also stores its input [x; f(x)]
            narrow += 2 * config.d_model * length
        wide += (config.d_model + 2) * length
    pieces = source_length * bool(config.encoder) + target_length
    below = pieces * (config.d_model * (STREAM_BYTES + value_bytes) + 8)  # embeddings and 64-bit piece ids
    return int(sentences * (narrow * value_bytes + wide * STREAM_BYTES + below))
