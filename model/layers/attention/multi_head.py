"""Multi-head attention (section 3.2, figure 2): self-attention and cross-attention.

Shapes: B sentences, S source, T target, Q queries, M memory positions, D d_model, H heads (num_heads), G heads of keys
and values (kv_heads), K d_k (in a search: beams), V d_v, E = H·V, n the width of a head (d_k or d_v), N blocks of a
window, R = B·K rows of a search, L layers. d_k and d_v are independent of D / H: row (B) of Table 3 varies d_k alone.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.layers.attention.attention_spec import blocked, blocks
from model.layers.attention.kernels import attend
from model.layers.contract import CacheShape, Inputs, State, StepContext, Sublayer
from model.layers.masks import BLOCKED, blocking_bias, causal_bias
from model.layers.spec import Spec
from model.parts.compatibility import COMPATIBILITY
from model.parts.distances import DISTANCES, Distances
from model.parts.dropout import dropout as drop
from model.parts.norms import NORM_EPSILON
from model.settings import ModelSettings, Side


class AttentionMask(NamedTuple):
    """The mask of attention scores: a bias, causality, and the distance of each query from each memory position."""

    bias: Tensor | None  # broadcastable to (B, H, Q, M), added to the scores; masks.BLOCKED hides a position
    causal: bool = False  # query t may attend only to memory 0 … t; `bias` does not contain this restriction
    distance_QM: Tensor | None = None  # memory position minus query position; None if no distances are needed


class Attention(Sublayer):
    """Base class of self-attention and cross-attention: heads, compatibility, kernel, gate, output projection W^O.

    - kv_heads: there are G heads of keys and values. H / G heads of queries share each of them (G = 1: Shazeer 2019,
      arXiv 1911.02150; G > 1: Ainslie 2023, arXiv 2305.13245).
    - qk_norm: queries and keys each have an RMSNorm, before rotary positions rotate them (Dehghani 2023, arXiv
      2302.05442, section 2.1).
    - attention_gate: the heads' outputs are multiplied element by element by σ(x W), where x is the sub-layer's input
      (Qiu 2025, arXiv 2505.06708, position G1).
    """

    def __init__(self, config: ModelSettings, options: Spec) -> None:
        super().__init__()
        self.num_heads, self.kv_heads = config.num_heads, config.kv_heads or config.num_heads
        self.d_k, self.d_v = config.d_k, config.d_v
        self.dropout = config.attention_dropout
        self.kernel = "auto"
        self.compare = COMPATIBILITY[config.compatibility](config)
        self.distances = Distances(config)
        self.query_norm = nn.RMSNorm(config.d_k, NORM_EPSILON) if config.qk_norm else None
        self.key_norm = nn.RMSNorm(config.d_k, NORM_EPSILON) if config.qk_norm else None
        width = config.num_heads * config.d_v
        self.output = nn.Linear(width, config.d_model, bias=config.bias)
        self.gate = nn.Linear(config.d_model, width, bias=config.bias) if config.attention_gate else None

    def initialise(self) -> None:
        """Draw the weights of the compatibility function and of the positions."""
        self.compare.initialise()
        self.distances.initialise()

    def combine(self, x_BQD: Tensor, q_BHQK: Tensor, k_BGMK: Tensor, v_BGMV: Tensor, mask: AttentionMask) -> Tensor:
        """Return MultiHead(Q, K, V) = Concat(head_1 … head_h) W^O (section 3.2.2), (B, Q, D)."""
        return self.finish(x_BQD, self.average(q_BHQK, k_BGMK, v_BGMV, mask))

    def average(self, q_BHQK: Tensor, k_BGMK: Tensor, v_BGMV: Tensor, mask: AttentionMask) -> Tensor:
        """Return Concat(head_1 … head_h), (B, Q, E): the weighted averages of the values, before W^O."""
        k_BHMK, v_BHMV = self._per_query(k_BGMK), self._per_query(v_BGMV)
        rate = self.dropout if self.training else 0.0
        if self.compare.fused and self.distances.fused:
            q_BHQK = self.compare.prepared(q_BHQK)
            heads_BHQV = attend(q_BHQK, k_BHMK, v_BHMV, mask.bias, causal=mask.causal, dropout=rate, kernel=self.kernel)
        else:
            weights_BHQM = drop(self._softmax(q_BHQK, k_BHMK, mask).to(v_BHMV.dtype), rate)
            heads_BHQV = weights_BHQM @ v_BHMV
            a_QMV = None if mask.distance_QM is None else self.distances.values(mask.distance_QM)
            if a_QMV is not None:
                heads_BHQV = heads_BHQV + torch.einsum("bhqm,qmv->bhqv", weights_BHQM, a_QMV.to(v_BHMV.dtype))
        return heads_BHQV.transpose(1, 2).flatten(2)

    def finish(self, x_BQD: Tensor, heads_BQE: Tensor) -> Tensor:
        """Apply the gate and W^O: (B, Q, E) → (B, Q, D)."""
        if self.gate is not None:
            heads_BQE = heads_BQE * self.gate(x_BQD).sigmoid()
        output: Tensor = self.output(heads_BQE)
        return output

    def _softmax(self, q_BHQK: Tensor, k_BHMK: Tensor, mask: AttentionMask) -> Tensor:
        """Return softmax(scores + bias), (B, H, Q, M), in fp32 or wider."""
        a_QMK = None if mask.distance_QM is None else self.distances.keys(mask.distance_QM)
        scores_BHQM: Tensor = self.compare(q_BHQK, k_BHMK, a_QMK)
        scores_BHQM = scores_BHQM.to(torch.promote_types(scores_BHQM.dtype, torch.float32))
        if mask.bias is not None:
            scores_BHQM = scores_BHQM + mask.bias
        if mask.causal:
            scores_BHQM = scores_BHQM + causal_bias(q_BHQK.shape[2], scores_BHQM.dtype, scores_BHQM.device)
        return scores_BHQM.softmax(-1)

    def split_heads(self, x: Tensor, heads: int, widths: list[int]) -> list[Tensor]:
        """Split x into heads: (B, T, H·Σn) → (B, H, T, n) for each width n, as views.

        The split precedes the transposition, so that the backward pass joins the gradients in the layout of x without
        another copy.
        """
        parts_BTHn = torch.split(torch.unflatten(x, -1, (heads, sum(widths))), widths, dim=-1)
        return [part_BTHn.transpose(1, 2) for part_BTHn in parts_BTHn]

    def _per_query(self, x_BGMn: Tensor) -> Tensor:
        """Repeat keys or values for all heads of queries: (B, G, M, n) → (B, H, M, n)."""
        if self.kv_heads == self.num_heads:
            return x_BGMn
        return x_BGMn.repeat_interleave(self.num_heads // self.kv_heads, dim=1)


class SelfAttention(Attention):
    """Self-attention. One matrix projects the sequence to queries, keys and values (as in tensor2tensor).

    The rows of `qkv` are ordered by head: q, k and v of the first head, then of the second. If there are fewer heads of
    keys and values, each of them is preceded by all heads of queries that share it. With `window` r, a position attends
    to r // 2 positions on either side (section 4: "a neighborhood of size r"). Long sequences are then computed in
    blocks, which takes O(r·T) products instead of O(T²) (attention_spec.blocked).
    """

    attends_to = "itself"

    def __init__(self, config: ModelSettings, options: Spec) -> None:
        super().__init__(config, options)
        self.distances = DISTANCES.get(config.positions, Distances)(config)
        self.window = config.window
        self.reach = None if config.window is None else config.window // 2  # number of positions on either side
        self.split = [self.num_heads // self.kv_heads * self.d_k, self.d_k, self.d_v]
        self.qkv = nn.Linear(config.d_model, self.kv_heads * sum(self.split), bias=config.bias)

    def project(self, x_BTD: Tensor, first: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, T, K), k (B, G, T, K), v (B, G, T, V).

        x has the positions first … last − 1. If last = first + 1, all vectors of x have the position `first`.
        """
        q_BHTK, k_BGTK, v_BGTV = self.split_heads(self.qkv(x_BTD), self.kv_heads, self.split)
        if self.kv_heads != self.num_heads:
            q_BHTK = q_BHTK.view(*q_BHTK.shape[:3], -1, self.d_k).transpose(2, 3).flatten(1, 2)
        q_BHTK, k_BGTK = _normed(q_BHTK, self.query_norm), _normed(k_BGTK, self.key_norm)
        return self.distances.turned(q_BHTK, first, last), self.distances.turned(k_BGTK, first, last), v_BGTV

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        T = x_BTD.shape[1]
        side: Side = "decoder" if inputs.causal else "encoder"
        projected = self.project(x_BTD, 0, T)
        if self.window is not None and blocked(self.window, T, side)[0] < T**2:
            return self.finish(x_BTD, self._in_blocks(x_BTD, *projected, inputs, blocks(self.window, side)))
        return self.combine(x_BTD, *projected, self._mask(x_BTD, inputs))

    def _in_blocks(
        self, x_BTD: Tensor, q_BHTK: Tensor, k_BGTK: Tensor, v_BGTV: Tensor, inputs: Inputs, sizes: tuple[int, int, int]
    ) -> Tensor:
        """Return Concat(head_1 … head_h), (B, T, E), computed in N blocks of Q queries.

        Each block is computed like a separate sentence. The memory of a block is the M positions around the block.
        sizes: result of attention_spec.blocks.
        """
        B, T, _ = x_BTD.shape
        device = x_BTD.device
        size, before, after = sizes
        count = -(-T // size)
        keep_BT = x_BTD.new_ones(B, T, dtype=torch.bool) if inputs.keep_BT is None else inputs.keep_BT

        def around(y_BGTn: Tensor) -> Tensor:
            """Collect the memory of each block, zero outside the sentence: (B, G, T, n) → (B·N, G, M, n)."""
            padded = F.pad(y_BGTn, (0, 0, before, (count + 1) * size - T - before))
            padded = torch.unflatten(padded, 2, (count + 1, size))
            y_BGNMn = torch.cat([padded[:, :, :-1], padded[:, :, 1:, : before + after]], 3)
            return y_BGNMn.transpose(1, 2).flatten(0, 1)

        q_BHNQK = torch.unflatten(F.pad(q_BHTK, (0, 0, 0, count * size - T)), 2, (count, size))
        bias = blocking_bias(around(keep_BT[:, None, :, None]).mT, x_BTD.dtype)
        time_Q1 = torch.arange(size, device=device).unsqueeze(1)
        distance_QM = torch.arange(-before, size + after, device=device) - time_Q1
        mask = self._by_distance(bias, inputs.causal, distance_QM, x_BTD.dtype)
        heads_NQE = self.average(q_BHNQK.transpose(1, 2).flatten(0, 1), around(k_BGTK), around(v_BGTV), mask)
        return torch.unflatten(heads_NQE, 0, (B, count)).flatten(1, 2)[:, :T]

    def shrink(self, factor: float) -> None:
        """Multiply W^O and the projection to values by `factor`."""
        self.output.weight.mul_(factor)
        self.qkv.weight.view(self.kv_heads, -1, self.qkv.in_features)[:, -self.d_v :].mul_(factor)

    def weights(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Return the attention weights softmax(q kᵀ / √d_k + bias), (B, H, T, T)."""
        q_BHTK, k_BGTK, _ = self.project(x_BTD, 0, x_BTD.shape[1])
        return self._softmax(q_BHTK, self._per_query(k_BGTK), self._mask(x_BTD, inputs))

    def _mask(self, x_BTD: Tensor, inputs: Inputs) -> AttentionMask:
        """Return the mask of whole sequences."""
        T = x_BTD.shape[1]
        sees_all = self.reach is None or self.reach >= T - 1  # whether the window hides no position
        if sees_all and not self.distances.reads_distance:
            return AttentionMask(inputs.bias_B11T, inputs.causal)
        time_T = torch.arange(T, device=x_BTD.device)
        return self._by_distance(inputs.bias_B11T, inputs.causal, time_T - time_T.unsqueeze(1), x_BTD.dtype)

    def _by_distance(self, bias: Tensor | None, causal: bool, distance_QM: Tensor, dtype: torch.dtype) -> AttentionMask:
        """Add position biases to `bias`. Hide positions outside the window, and later positions if `causal`."""
        added = self.distances.bias(distance_QM, causal)
        hidden_QM = distance_QM > 0 if causal else None
        if self.reach is not None:
            far_QM = distance_QM.abs() > self.reach
            hidden_QM = far_QM if hidden_QM is None else far_QM | hidden_QM
        if hidden_QM is not None:
            start = torch.zeros(distance_QM.shape, dtype=dtype, device=distance_QM.device) if added is None else added
            added = start.masked_fill(hidden_QM, BLOCKED)
        if bias is not None:
            added = bias if added is None else bias + added
        return AttentionMask(added, False, distance_QM)

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return slots for keys and values, (B, G, steps, K, n).

        `step` writes them in place and never reorders beams. With a window, slots for r // 2 + 1 positions are enough:
        the present position and the r // 2 positions before it.
        """
        steps = shape.max_steps if self.reach is None else min(shape.max_steps, self.reach + 1)
        slots = (shape.sentences, self.kv_heads, steps, shape.beam_size)
        weight = self.qkv.weight
        return State(keys=weight.new_empty(*slots, self.d_k), values=weight.new_empty(*slots, self.d_v))

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D). Each beam attends to the (time, beam) slots of its past."""
        x_BKD = _by_sentence(x_RD, now)
        q_BHKn, k_BGKn, v_BGKn = self.project(x_BKD, now.time, now.time + 1)
        slot = min(now.time, state["keys"].shape[2] - 1)
        if slot < now.time:  # the new position replaces the oldest one of the window
            state.put({name: state[name].roll(-1, 2) for name in ("keys", "values")})
        state["keys"][:, :, slot], state["values"][:, :, slot] = k_BGKn, v_BGKn
        keys_BGMn, values_BGMn = (state[name][:, :, : slot + 1].flatten(2, 3) for name in ("keys", "values"))
        mask = AttentionMask(None if now.bias_B1KM is None else now.bias_B1KM[..., (now.time - slot) * now.beam_size :])
        if self.distances.reads_distance:
            distance_M = torch.arange(-slot, 1, device=x_RD.device).repeat_interleave(now.beam_size)
            mask = self._by_distance(mask.bias, True, distance_M.expand(now.beam_size, -1), x_RD.dtype)
        return self.combine(x_BKD, q_BHKn, keys_BGMn, values_BGMn, mask).flatten(0, 1)


class CrossAttention(Attention):
    """Cross-attention (section 3.2.3).

    Queries are projections of the decoder's sequence; keys and values are projections of the encoder's output.
    Position encodings inside attention do not apply here.
    """

    attends_to = "source"

    def __init__(self, config: ModelSettings, options: Spec) -> None:
        super().__init__(config, options)
        self.query = nn.Linear(config.d_model, config.num_heads * config.d_k, bias=config.bias)
        widths = self.kv_heads * (config.d_k + config.d_v)
        self.key_value = nn.Linear(options.other_width or config.d_model, widths, bias=config.bias)

    def queries(self, x_BTD: Tensor) -> Tensor:
        """Project x to queries: (B, T, D) → (B, H, T, K)."""
        q_BTHK = torch.unflatten(self.query(x_BTD), -1, (self.num_heads, self.d_k))
        return _normed(q_BTHK.transpose(1, 2), self.query_norm)

    def keys_values(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Project the memory (B, S, D) to k (B, G, S, K) and v (B, G, S, V). A search does this once per sentence."""
        k_BGSK, v_BGSV = self.split_heads(self.key_value(memory_BSD), self.kv_heads, [self.d_k, self.d_v])
        return _normed(k_BGSK, self.key_norm), v_BGSV

    def forward(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Compute whole sequences: (B, T, D) → (B, T, D)."""
        assert inputs.memory_BMD is not None
        keys_values = self.keys_values(inputs.memory_BMD)
        return self.combine(x_BTD, self.queries(x_BTD), *keys_values, AttentionMask(inputs.memory_bias_B11M))

    def shrink(self, factor: float) -> None:
        """Multiply W^O and the projection to values by `factor`."""
        self.output.weight.mul_(factor)
        self.key_value.weight.view(self.kv_heads, -1, self.key_value.in_features)[:, -self.d_v :].mul_(factor)

    def weights(self, x_BTD: Tensor, inputs: Inputs) -> Tensor:
        """Return the attention weights softmax(q kᵀ / √d_k + bias), (B, H, T, M)."""
        assert inputs.memory_BMD is not None
        k_BGMK, _ = self.keys_values(inputs.memory_BMD)
        return self._softmax(self.queries(x_BTD), self._per_query(k_BGMK), AttentionMask(inputs.memory_bias_B11M))

    def start(self, inputs: Inputs, shape: CacheShape) -> State:
        """Return the keys and values of the source. All beams of a sentence share them."""
        assert inputs.memory_BMD is not None
        keys_BGMK, values_BGMV = self.keys_values(inputs.memory_BMD)
        return State(keys=keys_BGMK, values=values_BGMV)

    def step(self, x_RD: Tensor, state: State, now: StepContext) -> Tensor:
        """Compute one position: (R, D) → (R, D)."""
        x_BKD = _by_sentence(x_RD, now)
        mask, q_BHKK = AttentionMask(now.inputs.memory_bias_B11M), self.queries(x_BKD)
        if now.weights_LBKM is not None:
            now.weights_LBKM.append(self._softmax(q_BHKK, self._per_query(state["keys"]), mask).mean(1))
        return self.combine(x_BKD, q_BHKK, state["keys"], state["values"], mask).flatten(0, 1)


def _normed(x_BHTK: Tensor, norm: nn.RMSNorm | None) -> Tensor:
    """Apply the norm over the width of a head, in the type of x. Under autocast, the norm's weight has a wider type."""
    if norm is None:
        return x_BHTK
    return F.rms_norm(x_BHTK, norm.normalized_shape, norm.weight.to(x_BHTK.dtype), norm.eps)


def _by_sentence(x_RD: Tensor, now: StepContext) -> Tensor:
    """Return a view with the beams of a sentence as positions: (R, D) → (B, K, D)."""
    return x_RD.view(-1, now.beam_size, x_RD.shape[-1])
