"""A quicker form of the decoder for beam search, for the paper's three sub-layers with free sizes.

It holds the decoder's caches, one step over all beams in fewer and larger operations, and matrices packed for oneDNN.
Any other architecture is searched by model/stack.py, to which the tests compare this form.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from model.config import ModelConfig
from model.layers.attention.multi_head import CrossAttention, SelfAttention
from model.layers.contract import BLOCKED, CacheShape, Inputs, blocking_bias, without_autocast
from model.layers.position_wise.feed_forward import FeedForward
from model.parts.embedding import Embedding
from model.parts.residual import Residual
from model.products import Projection
from model.stack import Stack, check_ancestors

# --- The decoder's caches during a beam search
# Shapes: B sentences, S source, T time steps, K beams, H heads, N = B·H; keys and values end in their width n.
# Beams are never reordered. A beam's past is a path through (time, beam) slots. Each query is compared with all slots
# of its sentence; a bias blocks the slots that are not its ancestors. Keys and values of the source are stored once per
# sentence.


class LayerCache:
    """Keys and values of one decoder layer. Those of self-attention are (B, H, T, K, n), written in place by time."""

    def __init__(self, memory_keys: Tensor, memory_values: Tensor, self_keys: Tensor, self_values: Tensor) -> None:
        self.memory_keys, self.memory_values = memory_keys, memory_values  # (B, H, S, n)
        self.self_keys, self.self_values = self_keys, self_values
        # Views that every step uses, created once.
        self.memory_NnS, self.memory_NSn = memory_keys.flatten(0, 1).mT, memory_values.flatten(0, 1)
        self._key_slots, self._value_slots = self_keys.unbind(2), self_values.unbind(2)
        self._keys_NMn, self._values_NMn = (x.flatten(2, 3).flatten(0, 1) for x in (self_keys, self_values))

    @classmethod
    def start(
        cls, memory_keys: Tensor, memory_values: Tensor, beam_size: int, max_steps: int, dtype: torch.dtype
    ) -> "LayerCache":
        """Empty caches for max_steps positions; all tensors in `dtype`."""

        def slots(like: Tensor) -> Tensor:
            sentences, heads, _, width = like.shape
            return like.new_empty(sentences, heads, max_steps, beam_size, width)

        keys, values = memory_keys.to(dtype).contiguous(), memory_values.to(dtype).contiguous()
        return cls(keys, values, slots(keys), slots(values))

    def append(self, keys_BHKn: Tensor, values_BHKn: Tensor, time: int) -> tuple[Tensor, Tensor]:
        """Write the slots of `time`; return views of all slots so far: keys (N, n, M), values (N, M, n)."""
        self._key_slots[time].copy_(keys_BHKn)
        self._value_slots[time].copy_(values_BHKn)
        used = (time + 1) * keys_BHKn.shape[2]
        return self._keys_NMn.narrow(1, 0, used).mT, self._values_NMn.narrow(1, 0, used)

    def keep(self, count: int, places: Tensor, sentences: Tensor, steps: int) -> "LayerCache":
        """Move `sentences` to `places`, then keep the first `count`; `steps` positions are in use."""
        if len(places):
            used = self.self_keys[:, :, :steps], self.self_values[:, :, :steps]
            for slots in (self.memory_keys, self.memory_values, *used):
                slots.index_copy_(0, places, slots.index_select(0, sentences))
        return LayerCache(
            *(x[:count] for x in (self.memory_keys, self.memory_values, self.self_keys, self.self_values))
        )


@dataclass
class DecoderState:
    """The caches of all layers. `step` counts the positions written so far, so it is the next position's index."""

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
        """Number of steps for which the caches have room."""
        return self.positions_TD.shape[0]

    def keep(self, sentences: Sequence[int]) -> None:
        """Keep only the named sentences, in the order of the names.

        Only sentences whose place changes are copied, because keys and values are most of a search's memory. The freed
        memory is not returned.
        """
        moved = [place for place, sentence in enumerate(sentences) if place != sentence]
        device = self.positions_TD.device
        places, movers = (torch.tensor(rows, device=device) for rows in (moved, [sentences[place] for place in moved]))
        self.layers = [cache.keep(len(sentences), places, movers, self.step) for cache in self.layers]
        if self.source_bias_B11S is not None:
            self.source_bias_B11S = self.source_bias_B11S[torch.tensor(sentences, device=device)]
        self.__post_init__()

    def attention(self) -> Tensor:
        """Not here: a search that asks for it takes the slower form."""
        raise NotImplementedError

    def decode_step(self, tokens_BK: Tensor, visible_BKTK: Tensor | None) -> Tensor:
        """Hidden states (B, K, D) after one more piece per beam (Network.decode_step)."""
        bias = self.ancestor_bias(visible_BKTK)
        x_RD = self.embedding.at(tokens_BK.flatten(), self.positions_TD[self.step])
        with without_autocast(x_RD.device):
            hidden_RD: Tensor = self.final_norm(self.weights.step(x_RD, self, bias))
        self.step += 1
        return hidden_RD.view(*tokens_BK.shape, -1)

    def next_logits(self, hidden_BKD: Tensor) -> Tensor:
        """(B, K, D) → (B, K, W)."""
        with without_autocast(hidden_BKD.device):
            logits_RW = self.weights.output(hidden_BKD.flatten(0, 1))
        return logits_RW.view(*hidden_BKD.shape[:2], -1)

    def ancestor_bias(self, visible_BKTK: Tensor | None) -> Tensor | None:
        """(B, 1, K, (step + 1)·K) from the mask of ancestors, True = may attend; None for a single beam.

        Raises ValueError for a mask of another shape, and for a missing mask with several beams.
        """
        check_ancestors(visible_BKTK, self.num_sentences, self.beam_size, self.step)
        if visible_BKTK is None:
            return None
        return torch.where(visible_BKTK.flatten(2), self.weights.zero_bias, self.weights.blocked_bias).unsqueeze(1)


# --- Which decoders have the quick form, and its state at the start of a search. Shapes: B sentences, S source, D width


_LAYER = ("self_attention", "cross_attention", "feed_forward")
# Settings that the quick form knows, or that the encoder alone reads. Any other must have the paper's value.
_KNOWN = frozenset({
    "encoder", "decoder", "encoder_layers", "decoder_layers", "num_layers", "d_model", "d_ff", "num_heads", "d_k",
    "d_v", "dropout", "attention_dropout", "activation_dropout", "max_length", "shared_vocabulary",
    "memory_embeddings", "softmax_samples",
})  # fmt: skip
_VALUES = {
    "norm": ("post", "pre"), "positions": ("sinusoidal", "learned", "none"), "tying": ("all", "decoder"),
    "softmax": ("full", "sampled"),
}  # fmt: skip


def applies(config: ModelConfig) -> bool:
    """Whether the quick form computes this decoder."""
    for name, field in ModelConfig.model_fields.items():
        if name not in _KNOWN and getattr(config, name) not in _VALUES.get(name, (field.default,)):
            return False
    return all(
        tuple(part.kind for part in layer) == _LAYER and all(part.config == config for part in layer)
        for layer in config.layers("decoder")
    )


def quick_state(
    network: nn.Module, decoder: Stack, embedding: Embedding, inputs: Inputs, shape: CacheShape, config: ModelConfig
) -> DecoderState:
    """The state of a quick search; `network` is the owner of the weights."""
    memory_BSD, source_mask_BS = inputs.memory_BMD, inputs.memory_keep_BM
    assert memory_BSD is not None
    output_WD = embedding.weight[: embedding.vocab_size]
    weights = step_weights(network, decoder.layers, output_WD, config)
    dtype = weights.attention_dtype
    caches = []
    for layer in decoder.layers:
        attention = layer.cross_attention
        assert isinstance(attention, CrossAttention)
        caches.append(LayerCache.start(*attention.keys_values(memory_BSD), shape.beam_size, shape.max_steps, dtype))
    positions_TD = decoder.positions(memory_BSD.new_zeros(1, shape.max_steps, memory_BSD.shape[2]))[0]
    bias = None if source_mask_BS is None else blocking_bias(source_mask_BS[:, None, None, :], dtype)
    return DecoderState(weights, caches, bias, positions_TD, shape.beam_size, embedding, decoder.final_norm)


# --- One position of the decoder, in fewer and larger operations
# A search step consists of many small operations; starting one costs more than computing it. So q's scale is part of
# its weights, q, k and v are one product, sentences and heads are one dimension of batched products, and matrices are
# packed. Dropout is left out: a search never trains.
# Shapes: B sentences, K beams, R = B·K rows, H heads, N = B·H, M memory positions (source, or time × beam),
# D d_model; q and k end in d_k, v in d_v, written n.


Norm = Callable[[Tensor], Tensor]
# Largest product of a layer, in multiplications, for which one thread is faster than several: sharing costs about 5 µs.
ALONE_TO = 2**20


class StepWeights:
    """The weights of a decoder and of its softmax, prepared for steps in `dtype`."""

    def __init__(self, layers: Iterable[nn.Module], output_FD: Tensor, config: ModelConfig, dtype: torch.dtype) -> None:
        self.layers = [_LayerWeights(layer, config, dtype) for layer in layers]
        # Logits are not bf16: it has three digits, and 4 % of multi30k's translations would change.
        self.output = Projection(output_FD, None, output_FD.dtype)
        self.largest = config.d_model * config.d_ff  # elements of a layer's largest matrix
        # On a processor attention stays in fp32: oneDNN builds a new kernel for each number of positions.
        self.attention_dtype = dtype if output_FD.is_cuda else output_FD.dtype
        # The two values of contract.blocking_bias, created once because every step needs them.
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
        self.query = Projection(cross.query.weight * scale, cross.query.bias * scale, dtype)
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
    """Equation 1, heads side by side: (R, H·d_v). q's weights include the factor 1/√d_k; bias (B, 1, 1 or K, M)."""
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
    """(R, H·n) → (B, H, K, n), a view."""
    return x_R.view(state.num_sentences, state.beam_size, state.num_heads, -1).transpose(1, 2)


_known: "weakref.WeakKeyDictionary[nn.Module, tuple[object, StepWeights]]" = weakref.WeakKeyDictionary()

_packing = threading.Lock()  # batches are decoded by several threads


def step_weights(model: nn.Module, layers: nn.ModuleList, output_FD: Tensor, config: ModelConfig) -> StepWeights:
    """The weights of `model` for steps: in autocast's type, or in their own without autocast.

    Cached with the model until a weight or the type changes: packing costs as much as about ten steps.
    """
    kind = output_FD.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else output_FD.dtype
    parameters = list(model.parameters())
    if any(p.is_inference() for p in parameters):  # created in inference mode: torch does not count their changes
        return StepWeights(layers, output_FD, config, dtype)
    state = (dtype, *((p.data_ptr(), p._version) for p in parameters))
    with _packing:
        known = _known.get(model)
        if known is None or known[0] != state:
            with torch.inference_mode(False), torch.no_grad():
                known = (state, StepWeights(layers, output_FD, config, dtype))
            _known[model] = known
        return known[1]


def _linear(linear: nn.Linear, dtype: torch.dtype, *, relu: bool = False) -> Projection:
    return Projection(linear.weight, linear.bias, dtype, relu=relu)


def _query_key_value(attention: SelfAttention, config: ModelConfig, dtype: torch.dtype) -> Projection:
    """Reorder the rows from head by head (q, k, v of each) to all q, all k, all v."""
    weight, bias = attention.qkv.weight, attention.qkv.bias
    parts = [config.d_k, config.d_k, config.d_v]
    q, k, v = torch.split(weight.view(config.num_heads, sum(parts), -1), parts, dim=1)
    q_bias, k_bias, v_bias = torch.split(bias.view(config.num_heads, sum(parts)), parts, dim=1)
    scale = config.d_k**-0.5
    rows = torch.cat([(q * scale).flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1)])
    return Projection(rows, torch.cat([(q_bias * scale).flatten(), k_bias.flatten(), v_bias.flatten()]), dtype)


def _norm(norm: nn.Module) -> Norm:
    assert isinstance(norm, nn.LayerNorm)
    shape, weight, bias, eps = list(norm.normalized_shape), norm.weight.detach(), norm.bias.detach(), norm.eps
    return lambda x: torch.layer_norm(x, shape, weight, bias, eps)
