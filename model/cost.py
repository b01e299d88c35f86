"""Parameters, arithmetic and memory of a network, from its configuration alone.

Imports no torch. One multiplication and one addition are two floating-point operations. Only matrix products are
counted: norms, softmax, dropout and embedding look-ups are left out, as is usual. Each kind of sub-layer counts
itself (the `_spec` files of model/layers).
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from model.config import ModelConfig, SublayerSpec
from model.layers.spec import Cost, Length
from model.settings import SIDES, ModelSettings, Side, class_sizes

if TYPE_CHECKING:
    pass


TRAINING = 3  # cost of forward + backward, in forward passes: the backward pass costs two
STREAM_BYTES = 4  # the residual stream stays in fp32, also under autocast


def _costs(config: ModelConfig, source: Length, target: Length) -> Iterator[tuple[SublayerSpec, Length, Side, Cost]]:
    """Yield every sub-layer with the length of its sequence, its side and its cost."""
    for side, length in zip(SIDES, (source, target), strict=True):
        for layer in config.layers(side):
            for part in layer:
                yield part, length, side, part.options.cost(part.config, length, source, side)


def num_params(config: ModelConfig, vocab_size: int, source_vocab_size: int | None = None) -> int:
    """Return the number of trained weights, the column "params" of Table 3, without rows that only pad the vocabulary.

    vocab_size: pieces of the target, and of the source unless `source_vocab_size` is given.
    source_vocab_size: pieces of the source; ignored where the vocabulary is shared.
    """
    total = _embeddings(config, vocab_size, source_vocab_size or vocab_size)
    total += _classes(config, vocab_size) * _output_width(config)
    for side in SIDES:
        if getattr(config, side):  # a language model has no encoder
            total += _stack_params(config, side)
    return total


def _stack_params(config: ModelConfig, side: Side) -> int:
    """Return the trained weights of the encoder or the decoder: layers, learned positions, norms at both ends."""
    total = 0
    shared: dict[str, int] = {}
    for part in _own(config, side):
        total += part.options.cost(part.config, 1, 1, side).params + _around(part.config)
        shared |= part.options.shared(part.config)
    total += sum(shared.values())
    if config.positions == "learned":
        total += config.max_length * config.d_model
    if config.embedding_norm:
        total += _norm_params(config)
    if config.norm in ("pre", "sandwich"):
        total += _norm_params(config)
    return total


def _own(config: ModelConfig, side: Side) -> list[SublayerSpec]:
    """Return the sub-layers that have weights; those of layers that share weights come once."""
    own = dict(zip(config.groups(side), config.layers(side), strict=True))
    return [part for layer in own.values() for part in layer]


_NORMS = {"post": 1, "pre": 1, "sandwich": 2, "none": 0}  # norms of a sub-layer


def _norm_params(config: ModelSettings) -> int:
    """Return the trained weights of one norm."""
    if config.norm_kind == "scale":
        return 1
    return 2 * config.d_model if config.norm_kind == "layer" else config.d_model


def _around(config: ModelSettings) -> int:
    """Return the number of trained weights around a sub-layer: those of its norms and its residual connection."""
    rezero = 1 if config.residual and config.residual_scale == "rezero" else 0
    return _NORMS[config.norm] * _norm_params(config) + rezero + _joining(config)


def _joining(config: ModelSettings) -> int:
    """Return the products of a fast-forward connection for one position; also the number of its weights."""
    return 2 * config.d_model**2 if config.residual and config.residual_scale == "fast_forward" else 0


def _embeddings(config: ModelConfig, target: int, source: int) -> int:
    """Return the weights of the embeddings and the softmax for so many pieces of target and source."""
    width = config.embedding_size or config.d_model
    widening = width * config.d_model if config.embedding_size else 0  # a matrix between the two widths
    if config.tying == "inputs":  # one matrix of the embeddings, and a softmax's matrix of the full width
        return target * (width + config.d_model) + widening
    rows = target
    widenings = 2  # the target's, and the softmax's
    if config.encoder and (config.tying != "all" or not config.shared_vocabulary):
        rows += source
        widenings += 1
    if config.tying == "none":
        rows += target
    return rows * width + widenings * widening


def active_params(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of weights that one token uses: `num_params` without the experts that it does not use.

    If layers share experts, a token is assumed to use the same experts in each of them.
    """
    parts = [(part, side) for side in SIDES for part in _own(config, side)]
    costs = [part.options.cost(part.config, 1, 1, side) for part, side in parts]
    idle = sum(cost.params - cost.active for cost in costs if cost.active is not None)
    return num_params(config, vocab_size) - idle


def forward_flops(config: ModelConfig, vocab_size: int, source_length: Length, target_length: Length) -> Length:
    """Return the operations of one forward pass over S source and T target pieces, with the logits (2·T·d_model·V)."""
    layers = sum(_layer_flops(config, source_length, target_length).values())
    factors: Any = 0  # products between the width of the embeddings and that of the layers
    if config.embedding_size:
        looked_up = source_length + target_length if config.encoder else target_length
        narrowed = 0 if config.tying == "inputs" else target_length  # before the softmax
        factors = (looked_up + narrowed) * config.embedding_size * config.d_model
    rows = vocab_size + _classes(config, vocab_size)
    total: Length = layers + 2 * (target_length * _output_width(config) * rows + factors)
    return total


def _layer_flops(config: ModelConfig, source_length: Length, target_length: Length) -> dict[Side, Length]:
    """Return the operations of the layers of each side in a forward pass."""
    sums: dict[Side, Any] = dict.fromkeys(SIDES, 0)
    for part, length, side, cost in _costs(config, source_length, target_length):
        sums[side] = sums[side] + cost.flops + 2 * length * _joining(part.config)
    return sums


def _output_width(config: ModelConfig) -> int:
    """Return the width of the softmax's matrix."""
    return config.d_model if config.tying == "inputs" else config.embedding_size or config.d_model


def _classes(config: ModelConfig, vocab_size: int) -> int:
    """Return the number of classes of a hierarchical softmax, else 0."""
    return class_sizes(vocab_size)[1] if config.softmax == "hierarchical" else 0


def training_flops(
    config: ModelConfig, vocab_size: int, source_length: Length, target_length: Length, samples: int = 0
) -> Length:
    """Return the operations of a forward and a backward pass: 3·forward. The softmax of a training may have fewer rows.

    With `layer_drop` a layer counts by the probability that it is computed. samples: outputs that are drawn for each
    source for the expected GLEU (`sampling_flops`).
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

    Drawing is a forward pass, scoring a forward and a backward pass. The source is encoded once for each. A drawn
    output is counted with the length of its reference, because its length is not known before the training.
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

    value_bytes: width of the operands of matrix products (2 under bf16 autocast, 4 in fp32).
    Not counted: logits and loss, weights and their narrow copies, biases of masks. The fused kernels of "sdpa" keep
    less, because they keep no attention weights.
    """
    narrow: float = 0
    wide: float = 0
    for part, length, _, cost in _costs(config, source_length, target_length):
        # A sub-layer keeps its input and the dropout mask as narrow values. It keeps the input of LayerNorm, with mean
        # and deviation, in the stream's width.
        narrow += cost.kept + 2 * config.d_model * length
        narrow += 2 * config.d_model * length if _joining(part.config) else 0  # the two that it joins, side by side
        wide += (config.d_model + 2) * length
    pieces = source_length * bool(config.encoder) + target_length
    below = pieces * (config.d_model * (STREAM_BYTES + value_bytes) + 8)  # embeddings, with 64-bit piece ids
    return int(sentences * (narrow * value_bytes + wide * STREAM_BYTES + below))
