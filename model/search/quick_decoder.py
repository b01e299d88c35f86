"""The paper's decoder in a quick search. A step computes one position of all beams in fewer and larger operations.

A search step consists of many small operations, and launching an operation costs more than computing it. Therefore the
scale of q is folded into its weights, one product computes q, k and v, and batched products merge sentences and heads
into one dimension. On a CPU, large weights are stored in oneDNN's blocked layout (packed_linear.py). There is no
dropout, because a search never trains.

Shapes: B sentences, K beams, R = B·K rows, H heads, N = B·H, S source positions, T steps, M positions that attention
reads (S positions of the source, or T·K slots in self-attention), D d_model, n the width per head (d_k for queries and
keys, d_v for values), W pieces of the vocabulary, F outputs of the softmax's matrix.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.layers.attention.multi_head import CrossAttention, SelfAttention
from model.layers.masks import BLOCKED
from model.layers.position_wise.feed_forward import FeedForward
from model.parts.autocast import without_autocast
from model.parts.embedding import Embedding
from model.parts.residual import Residual
from model.search.packed_linear import PackedLinear
from model.search.quick_caches import LayerCache
from model.search.stepwise import check_ancestors

Norm = Callable[[Tensor], Tensor]
# If a step's product with a matrix of the feed-forward network has at most this many multiplications, one thread is
# faster than several. Using several threads costs about 5 µs.
ALONE_TO = 2**20


@dataclass
class DecoderState:
    """State of a quick search: weights and caches of all layers. `step` is the index of the next position."""

    weights: "StepWeights"
    layers: list[LayerCache]
    source_bias_B11S: Tensor | None
    positions_TD: Tensor  # position vectors, added to the embeddings at each step
    beam_size: int
    embedding: Embedding
    final_norm: nn.Module
    step: int = 0

    def __post_init__(self) -> None:
        self.num_sentences, self.num_heads = self.layers[0].memory_keys.shape[:2]

    @property
    def max_steps(self) -> int:
        """The maximum number of steps, for which slots are allocated."""
        return self.positions_TD.shape[0]

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only the sentences with these indices, in this order.

        Only sentences that change their place are copied, because keys and values take most of a search's memory. The
        memory of removed sentences is not released.
        """
        moved = [place for place, sentence in enumerate(sentences) if place != sentence]
        device = self.positions_TD.device
        places, movers = (torch.tensor(rows, device=device) for rows in (moved, [sentences[place] for place in moved]))
        self.layers = [cache.keep(len(sentences), places, movers, self.step) for cache in self.layers]
        if self.source_bias_B11S is not None:
            self.source_bias_B11S = self.source_bias_B11S[torch.tensor(sentences, device=device)]
        self.__post_init__()

    def attention(self) -> Tensor:
        """Raise NotImplementedError. A search that needs attention weights uses the slower search of stepwise.py."""
        raise NotImplementedError

    def decode_step(self, tokens_BK: Tensor, visible_BKTK: Tensor | None) -> Tensor:
        """Return hidden states (B, K, D) after one more piece per beam (Network.decode_step)."""
        bias = self.ancestor_bias(visible_BKTK)
        x_RD = self.embedding.at(tokens_BK.flatten(), self.positions_TD[self.step])
        with without_autocast(x_RD.device):
            hidden_RD: Tensor = self.final_norm(self.weights.step(x_RD, self, bias))
        self.step += 1
        return hidden_RD.view(*tokens_BK.shape, -1)

    def next_logits(self, hidden_BKD: Tensor) -> Tensor:
        """Return the logits (B, K, W) of hidden states (B, K, D)."""
        with without_autocast(hidden_BKD.device):
            logits_RW = self.weights.output(hidden_BKD.flatten(0, 1))
        return logits_RW.view(*hidden_BKD.shape[:2], -1)

    def ancestor_bias(self, visible_BKTK: Tensor | None) -> Tensor | None:
        """Convert the mask of ancestors (True = may attend) to a bias (B, 1, K, (step + 1)·K).

        Returns None without a mask. Raises ValueError if the mask has another shape, or if there are several beams
        and no mask.
        """
        check_ancestors(visible_BKTK, self.num_sentences, self.beam_size, self.step)
        if visible_BKTK is None:
            return None
        return torch.where(visible_BKTK.flatten(2), self.weights.zero_bias, self.weights.blocked_bias).unsqueeze(1)


class StepWeights:
    """The weights of a decoder and of its softmax, prepared for search steps.

    The matrices of the layers are converted to `dtype`, but the softmax's matrix keeps its type.
    """

    def __init__(self, layers: Iterable[nn.Module], output_FD: Tensor, config: ModelConfig, dtype: torch.dtype) -> None:
        self.layers = [_LayerWeights(layer, config, dtype) for layer in layers]
        # Logits are not computed in bf16, because its three digits would change 4 % of the translations of multi30k.
        self.output = PackedLinear(output_FD, None, output_FD.dtype)
        self.largest = config.d_model * config.d_ff  # elements of a matrix of the feed-forward network
        # On a CPU, attention stays in fp32, because oneDNN would build a new bf16 kernel for each number of positions.
        self.attention_dtype = dtype if output_FD.is_cuda else output_FD.dtype
        # The two values of masks.blocking_bias, created once because every step needs them.
        self.zero_bias, self.blocked_bias = (
            torch.tensor(value, dtype=self.attention_dtype, device=output_FD.device) for value in (0.0, BLOCKED)
        )

    def step(self, x_RD: Tensor, state: DecoderState, ancestor_bias: Tensor | None) -> Tensor:
        """Pass one position of every beam through all layers: (R, D) → (R, D)."""
        threads = torch.get_num_threads()
        alone = threads > 1 and x_RD.shape[0] * self.largest <= ALONE_TO and not x_RD.is_cuda
        if alone:
            torch.set_num_threads(1)
        try:
            for layer, cache in zip(self.layers, state.layers, strict=True):
                x_RD = layer.step(x_RD, cache, state, ancestor_bias)
        finally:
            if alone:
                torch.set_num_threads(threads)
        return x_RD


class _LayerWeights:
    def __init__(self, layer: nn.Module, config: ModelConfig, dtype: torch.dtype) -> None:
        own, cross, network = layer.self_attention, layer.cross_attention, layer.feed_forward
        assert isinstance(own, SelfAttention) and isinstance(cross, CrossAttention) and isinstance(network, FeedForward)
        self.parts = [config.num_heads * width for width in (config.d_k, config.d_k, config.d_v)]
        self.qkv = _query_key_value(own, config, dtype)
        self.self_output = _linear(own.output, dtype)
        scale = config.d_k**-0.5
        self.query = PackedLinear(cross.query.weight * scale, cross.query.bias * scale, dtype)
        self.cross_output = _linear(cross.output, dtype)
        self.inner = _linear(network.inner, dtype, relu=True)
        self.outer = _linear(network.outer, dtype)
        residuals = [module for module in layer.children() if isinstance(module, Residual)]
        self.norms = [_norm(residual.norm) for residual in residuals]
        self.pre = config.norm == "pre"

    def step(self, x_RD: Tensor, cache: LayerCache, state: DecoderState, ancestor_bias: Tensor | None) -> Tensor:
        x_RD = self.after(0, x_RD, self.self_attention(self.before(0, x_RD), cache, state, ancestor_bias))
        x_RD = self.after(1, x_RD, self.cross_attention(self.before(1, x_RD), cache, state))
        return self.after(2, x_RD, self.outer(self.inner(self.before(2, x_RD))))

    def before(self, sublayer: int, x_RD: Tensor) -> Tensor:
        return self.norms[sublayer](x_RD) if self.pre else x_RD

    def after(self, sublayer: int, x_RD: Tensor, output_RD: Tensor) -> Tensor:
        return x_RD + output_RD if self.pre else self.norms[sublayer](x_RD + output_RD)

    def self_attention(
        self, x_RD: Tensor, cache: LayerCache, state: DecoderState, ancestor_bias: Tensor | None
    ) -> Tensor:
        q, k, v = self.qkv(x_RD).split_with_sizes(self.parts, 1)
        keys_values = cache.append(_by_head(k, state), _by_head(v, state), state.step)
        return self.self_output(_attend(q, *keys_values, state, ancestor_bias))

    def cross_attention(self, x_RD: Tensor, cache: LayerCache, state: DecoderState) -> Tensor:
        q = self.query(x_RD)
        return self.cross_output(_attend(q, cache.memory_NnS, cache.memory_NSn, state, state.source_bias_B11S))


def _attend(q: Tensor, k_NnM: Tensor, v_NMn: Tensor, state: DecoderState, bias: Tensor | None) -> Tensor:
    """Compute equation 1 and return the heads side by side, (R, H·d_v).

    The weights of the projection to q already include the factor 1/√d_k. bias: (B, 1, 1 or K, M).
    """
    B, K, H = state.num_sentences, state.beam_size, state.num_heads
    q_NKn = q.view(B, K, H, -1).transpose(1, 2).reshape(B * H, K, -1)
    if q_NKn.dtype != k_NnM.dtype:
        q_NKn = q_NKn.to(k_NnM.dtype)
    scores_NKM = torch.bmm(q_NKn, k_NnM)
    if bias is not None:
        scores_NKM.view(B, H, K, -1).add_(bias)
    heads_NKn = torch.bmm(scores_NKM.softmax(-1), v_NMn)
    return heads_NKn.view(B, H, K, -1).transpose(1, 2).reshape(B * K, -1)


def _by_head(x_R: Tensor, state: DecoderState) -> Tensor:
    """Return a view of x by head: (R, H·n) → (B, H, K, n)."""
    return x_R.view(state.num_sentences, state.beam_size, state.num_heads, -1).transpose(1, 2)


_known: "weakref.WeakKeyDictionary[nn.Module, tuple[object, StepWeights]]" = weakref.WeakKeyDictionary()

_packing = threading.Lock()  # several threads may decode batches at the same time


def step_weights(model: nn.Module, layers: nn.ModuleList, output_FD: Tensor, config: ModelConfig) -> StepWeights:
    """Return the weights of `model`, prepared for search steps.

    If autocast is enabled, the matrices of the layers have autocast's type. The softmax's matrix keeps its type. The
    result is cached per model until a weight or the type changes, because packing costs as much as about ten steps.
    """
    kind = output_FD.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else output_FD.dtype
    parameters = list(model.parameters())
    if any(p.is_inference() for p in parameters):  # torch has no version counter for tensors of inference mode
        return StepWeights(layers, output_FD, config, dtype)
    state = (dtype, *((p.data_ptr(), p._version) for p in parameters))
    with _packing:
        known = _known.get(model)
        if known is None or known[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                known = (state, StepWeights(layers, output_FD, config, dtype))
            _known[model] = known
        return known[1]


def _linear(linear: nn.Linear, dtype: torch.dtype, *, relu: bool = False) -> PackedLinear:
    return PackedLinear(linear.weight, linear.bias, dtype, relu=relu)


def _query_key_value(attention: SelfAttention, config: ModelConfig, dtype: torch.dtype) -> PackedLinear:
    """Return the projection to q, k and v. Its rows are reordered: all rows of q, then all of k, then all of v."""
    weight, bias = attention.qkv.weight, attention.qkv.bias
    parts = [config.d_k, config.d_k, config.d_v]
    q, k, v = torch.split(weight.view(config.num_heads, sum(parts), -1), parts, dim=1)
    q_bias, k_bias, v_bias = torch.split(bias.view(config.num_heads, sum(parts)), parts, dim=1)
    scale = config.d_k**-0.5
    rows = torch.cat([(q * scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)])
    return PackedLinear(rows, torch.cat([(q_bias * scale).flatten(), k_bias.flatten(), v_bias.flatten()]), dtype)


def _norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, nn.LayerNorm)
    shape, weight, bias, eps = list(norm.normalized_shape), norm.weight.detach(), norm.bias.detach(), norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
