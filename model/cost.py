"""Parameters, arithmetic and memory of a Transformer, as pure functions of its configuration. Imports no torch.

One multiplication and one addition are two floating-point operations. Only matrix products are counted: norms,
softmax, dropout and embedding look-ups are left out, as is usual.
"""

from typing import TYPE_CHECKING, TypeVar

from model.config import ModelConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Length = TypeVar("Length", float, "NDArray[np.int64]")  # one length, or the lengths of many sentences
TRAINING = 3  # cost of forward + backward, in forward passes: the backward pass costs two
STREAM_BYTES = 4  # the residual stream stays in fp32, also under autocast


def num_params(config: ModelConfig, vocab_size: int, source_vocab_size: int | None = None) -> int:
    """Number of trained weights, the column "params" of Table 3. Rows that only pad the vocabulary do not count.

    vocab_size: pieces of the target, and of the source unless `source_vocab_size` is given.
    source_vocab_size: pieces of the source; ignored where the vocabulary is shared.
    """
    d_model, heads = config.d_model, config.num_heads
    projections = heads * (2 * config.d_k + config.d_v)
    attention = d_model * projections + projections + heads * config.d_v * d_model + d_model
    feed_forward = 2 * d_model * config.d_ff + config.d_ff + d_model
    norm = 2 * d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    final_norms = 2 * norm if config.norm == "pre" else 0
    sources = 0 if config.shared_vocabulary else source_vocab_size or vocab_size
    embeddings = (sources + vocab_size) * d_model
    positions = 2 * config.max_length * d_model if config.positions == "learned" else 0
    return config.num_layers * (encoder_layer + decoder_layer) + final_norms + embeddings + positions


def forward_flops(config: ModelConfig, vocab_size: int, source_length: Length, target_length: Length) -> Length:
    """Operations of one forward pass over a pair of S source and T target pieces, logits included.

    2·[N·(S·(self + ffn) + T·(self + q,o of cross + ffn) + S·(k,v of cross)) + T·d_model·V]      weight matrices
    + 2·N·h·(d_k + d_v)·(S² + T² + S·T)                                                      scores and averages
    T² is counted whole: most kernels with a causal mask compute all of it.
    """
    d_model, source, target = config.d_model, source_length, target_length
    queries, values = config.num_heads * config.d_k, config.num_heads * config.d_v
    self_attention = d_model * (2 * queries + 2 * values)
    cross_query_output = cross_key_value = d_model * (queries + values)
    feed_forward = 2 * d_model * config.d_ff
    encoder = source * (self_attention + feed_forward)
    decoder = target * (self_attention + cross_query_output + feed_forward) + source * cross_key_value
    scores = (queries + values) * (source**2 + target**2 + source * target)
    total: Length = 2 * (config.num_layers * (encoder + decoder + scores) + target * d_model * vocab_size)
    return total


def flops_per_token(config: ModelConfig, vocab_size: int, source_length: float, target_length: float) -> float:
    """Training operations per target piece: 3·forward / T."""
    return TRAINING * forward_flops(config, vocab_size, source_length, target_length) / target_length


def activation_bytes(
    config: ModelConfig,
    sentences: int,
    source_length: int,
    target_length: int,
    *,
    value_bytes: int = 4,
    fused_attention: bool = False,
) -> int:
    """Bytes that the forward pass keeps for the backward pass, from the embeddings to the last hidden state.

    value_bytes: width of the operands of matrix products (2 under bf16 autocast, 4 in fp32).
    fused_attention: the fused kernels of "sdpa" keep no attention weights.
    Not counted: logits and loss, weights and their narrow copies, biases of masks.
    """
    source, target = source_length, target_length
    queries, values, d_model = config.num_heads * config.d_k, config.num_heads * config.d_v, config.d_model
    weights = 0 if fused_attention else config.num_heads * (source**2 + target**2 + source * target)
    heads = (source + target) * 2 * (queries + values)  # self-attention: q, k, v and their average
    heads += (target + source) * (queries + values)  # cross-attention: q and average; k and v of the source
    inner = (source + target) * config.d_ff
    # A sub-layer keeps its input and the dropout mask as narrow values. It keeps the input of LayerNorm, with mean and
    # deviation, in the stream's width.
    sublayers = 2 * source + 3 * target
    narrow = heads + weights + inner + 2 * d_model * sublayers
    wide = (d_model + 2) * sublayers
    below = (source + target) * (d_model * (STREAM_BYTES + value_bytes) + 8)  # embeddings, with 64-bit piece ids
    return sentences * (config.num_layers * (narrow * value_bytes + wide * STREAM_BYTES) + below)
