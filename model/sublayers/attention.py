"""Multi-head attention (section 3.2, figure 2).

Shapes: B sentences, S source, T target, Q queries, M memory positions, D d_model, H heads, K d_k, V d_v.
d_k and d_v are independent of D / H: row (B) of Table 3 varies d_k alone.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.config import ModelConfig
from model.kinds.kind import Kind
from model.parts.dropout import dropout as drop
from model.parts.masks import causal_bias
from model.parts.softmax import softmax_over_memory
from model.sublayers.contract import Given, Now, Room, State, Sublayer

Kernel = Callable[[Tensor, Tensor, Tensor, Tensor | None, bool, float], Tensor]


def attend_plain(
    q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Equation 1 as batched products. For short sentences on a CPU faster than the fused kernel's backward pass.

    Scores are stored memory-major, so the softmax over the last but one axis reads contiguous queries. A softmax over a
    last axis of 15 elements takes two to four times as long, its backward pass three to seven times (torch 2.13, CPU).
    """
    scores_BHMQ = (k_BHMK @ q_BHQK.mT).mul_(q_BHQK.shape[-1] ** -0.5)
    M, Q = scores_BHMQ.shape[-2:]
    # Expanded for every query: adding a bfloat16 bias that is strided or broadcast over queries is ten times slower.
    if bias is not None:
        scores_BHMQ += bias.mT.expand(*bias.shape[:-2], M, Q).contiguous()
    if causal:
        scores_BHMQ += causal_bias(Q, scores_BHMQ.dtype, scores_BHMQ.device).mT.contiguous()
    weights_BHMQ = drop(softmax_over_memory(scores_BHMQ), dropout)
    return weights_BHMQ.mT @ v_BHMV


def attend_sdpa(
    q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Equation 1 by torch's fused kernels. torch chooses one by the device, by d_k = d_v and by the bias."""
    return F.scaled_dot_product_attention(q_BHQK, k_BHMK, v_BHMV, attn_mask=bias, dropout_p=dropout, is_causal=causal)


FUSED_FROM = 32  # positions


def attend_by_length(
    q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, bias: Tensor | None, causal: bool, dropout: float
) -> Tensor:
    """Equation 1 by the faster kernel on a processor, as measured by benchmarks/attention.py.

    fp32: the fused kernel from 32 positions on, 1.04 to 1.8 times as fast. bf16: never up to 512 positions, because its
    backward pass is 1.1 to 16 times as slow. For d_k ≠ d_v and for dropout, torch falls back to a slower kernel.
    """
    positions = min(q_BHQK.shape[-2], k_BHMK.shape[-2])
    alike = q_BHQK.shape[-1] == v_BHMV.shape[-1] and not dropout
    fused = q_BHQK.dtype == torch.float32 and positions >= FUSED_FROM and alike
    return (attend_sdpa if fused else attend_plain)(q_BHQK, k_BHMK, v_BHMV, bias, causal, dropout)


KERNELS: dict[str, Kernel] = {"plain": attend_plain, "sdpa": attend_sdpa, "by_length": attend_by_length}
BEST_KERNEL = {"cuda": "sdpa", "cpu": "by_length"}  # for the kernel "auto", by device; plain on other devices


def attend(
    q_BHQK: Tensor,
    k_BHMK: Tensor,
    v_BHMV: Tensor,
    bias: Tensor | None = None,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    kernel: str = "auto",
) -> Tensor:
    """softmax(q kᵀ / √d_k + bias) v, of shape (B, H, Q, V) (equation 1).

    bias: broadcastable to (B, H, Q, M), from masks.blocking_bias; None blocks nothing.
    causal: query t sees memory 0 … t only; requires Q = M and no bias.
    dropout: rate on the attention weights.
    """
    if kernel == "auto":
        kernel = BEST_KERNEL.get(q_BHQK.device.type, "plain")
    if bias is not None:
        bias = bias.to(q_BHQK.dtype)  # autocast makes queries narrower than the bias
    return KERNELS[kernel](q_BHQK, k_BHMK, v_BHMV, bias, causal, dropout)


class Attention(Sublayer):
    """Common part of self- and cross-attention: heads, kernel, dropout on the weights, output projection W^O."""

    def __init__(self, config: ModelConfig, options: Kind) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.d_k, self.d_v = config.d_k, config.d_v
        self.dropout = config.attention_dropout
        self.kernel = "auto"
        self.output = nn.Linear(config.num_heads * config.d_v, config.d_model)

    def combine(
        self, q_BHQK: Tensor, k_BHMK: Tensor, v_BHMV: Tensor, bias: Tensor | None, *, causal: bool = False
    ) -> Tensor:
        """MultiHead(Q, K, V) = Concat(head_1 … head_h) W^O, of shape (B, Q, D)."""
        rate = self.dropout if self.training else 0.0
        heads_BHQV = attend(q_BHQK, k_BHMK, v_BHMV, bias, causal=causal, dropout=rate, kernel=self.kernel)
        output: Tensor = self.output(heads_BHQV.transpose(1, 2).flatten(2))
        return output

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, T, H·n) → (B, H, T, n), a view."""
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)


class SelfAttention(Attention):
    """Queries, keys and values from the same sequence, projected by one matrix (as in tensor2tensor).

    The rows of `qkv` go head by head: q, k and v of the first head, then of the second.
    """

    def __init__(self, config: ModelConfig, options: Kind) -> None:
        super().__init__(config, options)
        self.qkv = nn.Linear(config.d_model, config.num_heads * (2 * config.d_k + config.d_v))

    def project(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, T, K), k (B, H, T, K), v (B, H, T, V)."""
        heads = self.split_heads(self.qkv(x_BTD))
        q_BHTK, k_BHTK, v_BHTV = torch.split(heads, [self.d_k, self.d_k, self.d_v], dim=-1)
        return q_BHTK, k_BHTK, v_BHTV

    def forward(self, x_BTD: Tensor, given: Given) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        return self.combine(*self.project(x_BTD), given.bias_B11T, causal=given.causal)

    def shrink(self, factor: float) -> None:
        self.output.weight.mul_(factor)
        self.qkv.weight.view(self.num_heads, -1, self.qkv.in_features)[:, 2 * self.d_k :].mul_(factor)

    def weights(self, x_BTD: Tensor, given: Given) -> Tensor:
        """softmax(q kᵀ / √d_k + bias), (B, H, T, T)."""
        q_BHTK, k_BHTK, _ = self.project(x_BTD)
        causal = causal_bias(x_BTD.shape[1], torch.float32, x_BTD.device) if given.causal else None
        return _weights(q_BHTK, k_BHTK, given.bias_B11T, causal)

    def start(self, given: Given, room: Room) -> State:
        """Room for keys and values, (B, H, max_steps, K, n): slots are written in place, beams never move."""
        slots = (room.sentences, self.num_heads, room.max_steps, room.beam_size)
        weight = self.qkv.weight
        return State(keys=weight.new_empty(*slots, self.d_k), values=weight.new_empty(*slots, self.d_v))

    def step(self, x_RD: Tensor, state: State, now: Now) -> Tensor:
        """(R, D) → (R, D): each beam attends to the (time, beam) slots of its own past."""
        q_BHKn, k_BHKn, v_BHKn = self.project(_by_sentence(x_RD, now))
        state["keys"][:, :, now.time], state["values"][:, :, now.time] = k_BHKn, v_BHKn
        keys_BHMn, values_BHMn = (state[name][:, :, : now.time + 1].flatten(2, 3) for name in ("keys", "values"))
        return self.combine(q_BHKn, keys_BHMn, values_BHMn, now.bias_B1KM).flatten(0, 1)


class CrossAttention(Attention):
    """Queries from the decoder, keys and values from the encoder's output ("encoder-decoder attention")."""

    def __init__(self, config: ModelConfig, options: Kind) -> None:
        super().__init__(config, options)
        self.query = nn.Linear(config.d_model, config.num_heads * config.d_k)
        self.key_value = nn.Linear(config.d_model, config.num_heads * (config.d_k + config.d_v))

    def keys_values(self, memory_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """k (B, H, S, K), v (B, H, S, V): computed once per sentence for all beams and steps."""
        heads = self.split_heads(self.key_value(memory_BSD))
        k_BHSK, v_BHSV = torch.split(heads, [self.d_k, self.d_v], dim=-1)
        return k_BHSK, v_BHSV

    def forward(self, x_BTD: Tensor, given: Given) -> Tensor:
        """(B, T, D) → (B, T, D)."""
        assert given.memory_BMD is not None
        keys_values = self.keys_values(given.memory_BMD)
        return self.combine(self.split_heads(self.query(x_BTD)), *keys_values, given.memory_bias_B11M)

    def shrink(self, factor: float) -> None:
        self.output.weight.mul_(factor)
        self.key_value.weight.view(self.num_heads, -1, self.key_value.in_features)[:, self.d_k :].mul_(factor)

    def weights(self, x_BTD: Tensor, given: Given) -> Tensor:
        """softmax(q kᵀ / √d_k + bias), (B, H, T, M)."""
        assert given.memory_BMD is not None
        k_BHMK, _ = self.keys_values(given.memory_BMD)
        return _weights(self.split_heads(self.query(x_BTD)), k_BHMK, given.memory_bias_B11M)

    def start(self, given: Given, room: Room) -> State:
        """Keys and values, once per sentence."""
        assert given.memory_BMD is not None
        keys_BHMK, values_BHMV = self.keys_values(given.memory_BMD)
        return State(keys=keys_BHMK, values=values_BHMV)

    def step(self, x_RD: Tensor, state: State, now: Now) -> Tensor:
        """(R, D) → (R, D)."""
        q_BHKn = self.split_heads(self.query(_by_sentence(x_RD, now)))
        return self.combine(q_BHKn, state["keys"], state["values"], now.given.memory_bias_B11M).flatten(0, 1)


def _weights(q_BHQK: Tensor, k_BHMK: Tensor, *biases: Tensor | None) -> Tensor:
    scores_BHQM = (q_BHQK @ k_BHMK.mT).float() * q_BHQK.shape[-1] ** -0.5
    for bias in biases:
        scores_BHQM = scores_BHQM if bias is None else scores_BHQM + bias
    weights_BHQM: Tensor = scores_BHQM.softmax(-1)
    return weights_BHQM


def _by_sentence(x_RD: Tensor, now: Now) -> Tensor:
    """(R, D) → (B, K, D): the beams of a sentence as positions."""
    return x_RD.view(-1, now.beam_size, x_RD.shape[-1])
