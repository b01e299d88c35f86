"""Options and cost of multi-head attention (section 3.2): self-attention and cross-attention. Imports no torch.

Symbols in formulas: T queries, M keys and values, D d_model, h num_heads, g kv_heads, r window.
"""

import math
from typing import ClassVar

from model.layers.spec import Cost, Length, Spec
from model.settings import ModelSettings, Side

SMALLEST_BLOCK = 16  # number of queries; on a CPU the fastest of 16, 32, 64 and 128 (torch 2.13, fp32)


def blocks(window: int, side: Side) -> tuple[int, int, int]:
    """Return the sizes of the blocks in which self-attention with a window is computed.

    The three numbers are the queries in a block, the memory positions before its first query, and the memory positions
    after its last query. The first number is at least the sum of the other two. The memory of a block therefore lies
    within two adjacent blocks of the padded sequence.
    """
    before = window // 2
    after = 0 if side == "decoder" else before
    return max(SMALLEST_BLOCK, before + after), before, after


def blocked(window: int | None, length: Length, side: Side) -> tuple[Length, Length]:
    """Return the number of query-key pairs that self-attention computes, and of memory positions that it stores.

    Without a window, it computes all T² pairs. With a window, it computes the pairs of the blocks, O(r·T), if they are
    less than half of all pairs. Otherwise blocks are not faster, and it computes all pairs.
    """
    if window is None:
        return length**2, length
    size, before, after = blocks(window, side)
    stored = -(-length // size) * (size + before + after)
    in_blocks = 2 * stored * size < length**2  # a bool, or an array with a bool for each length
    return length**2 + in_blocks * (stored * size - length**2), length + in_blocks * (stored - length)


class AttentionSpec(Spec):
    """Settings and cost that self-attention and cross-attention share."""

    reads: ClassVar[tuple[str, ...]] = (
        "num_heads", "kv_heads", "d_k", "d_v", "compatibility", "attention_dropout", "qk_norm", "attention_gate",
        "bias",
    )  # fmt: skip

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError if kv_heads does not divide num_heads."""
        if config.kv_heads and config.num_heads % config.kv_heads:
            divisors = [n for n in range(1, config.num_heads + 1) if config.num_heads % n == 0]
            raise ValueError(
                f"kv_heads = {config.kv_heads} does not divide num_heads = {config.num_heads}, and each head of keys "
                f"and values serves equally many queries: take one of {', '.join(map(str, divisors))}"
            )

    def _widths(self, config: ModelSettings) -> tuple[int, int, int]:
        """Return three total widths: queries h·d_k, keys and values g·(d_k + d_v), and the heads' outputs h·d_v."""
        kv_heads = config.kv_heads or config.num_heads
        return config.num_heads * config.d_k, kv_heads * (config.d_k + config.d_v), config.num_heads * config.d_v

    def _params(self, config: ModelSettings) -> int:
        """Return the number of weights of the projections, the gate, the compatibility function and the norms."""
        queries, keys_values, heads = self._widths(config)
        inputs = queries + keys_values
        if config.attention_gate:
            inputs += heads
        params = config.d_model * (inputs + heads)
        if config.bias:
            params += inputs + config.d_model
        if config.compatibility == "bilinear":
            params += queries * config.d_k
        elif config.compatibility == "additive":
            params += queries
        if config.qk_norm:
            params += 2 * config.d_k
        return params

    def _pairs(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> tuple[Length, Length]:
        """Return the number of query-key pairs that are computed, and of memory positions that are stored."""
        return length * memory, memory

    def _cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost for `length` queries and `memory` keys and values.

        The multiplications are D·h·(d_k + d_v) per query, D·g·(d_k + d_v) per key and value, and h·(d_k + d_v) per
        query-key pair. Per query, a gate adds D·h·d_v and a bilinear form adds h·d_k². An additive score takes as many
        multiplications as a dot product. Causal attention counts all T² pairs, because most kernels compute all of
        them.
        """
        pairs, stored = self._pairs(config, length, memory, side)
        queries, keys_values, heads = self._widths(config)
        gate = heads if config.attention_gate else 0
        bilinear = queries * config.d_k if config.compatibility == "bilinear" else 0
        of_queries = config.d_model * (queries + heads + gate) + bilinear
        products = length * of_queries + memory * config.d_model * keys_values + (queries + heads) * pairs
        # The forward pass stores q, k, v, the heads' outputs and the attention weights. It repeats k and v for h heads.
        kept = (length + stored) * (queries + heads) + config.num_heads * pairs
        if config.compatibility == "additive":  # stores the tanh of each pair instead of q and k
            kept = kept + queries * pairs - (length + stored) * queries
        if config.compatibility == "bilinear":  # also stores q before the matrix, and the matrix for each sentence
            kept = kept + length * queries + bilinear
        if config.qk_norm:  # also stores q, k and v before the norms, and q and k before the norms' weights
            normed = length * config.num_heads + memory * (config.kv_heads or config.num_heads)
            kept = kept + length * queries + memory * keys_values + normed * (config.d_k + 1)
        kept = kept + 2 * length * gate  # the gate, and the heads' outputs before the gate
        return Cost(self._params(config), 2 * products, kept)


class SelfAttentionSpec(AttentionSpec):
    """Options and cost of self-attention: queries, keys and values are projections of the same sequence."""

    computation: ClassVar[str] = "model.layers.attention.multi_head:SelfAttention"
    reads: ClassVar[tuple[str, ...]] = (
        *AttentionSpec.reads, "window", "position_clip", "position_keys", "position_values", "position_buckets",
        "position_distance", "position_shared", "rotary_share",
    )  # fmt: skip
    reads_distances: ClassVar[bool] = True
    read_with: ClassVar[dict[str, tuple[str, ...]]] = {  # settings that are read only with one value of `positions`
        "relative": ("position_clip", "position_keys", "position_values"),
        "bias": ("position_buckets", "position_distance", "position_shared"),
        "rotary": ("rotary_share",),
    }

    def reads_here(self, config: ModelSettings) -> tuple[str, ...]:
        """Return the names in `reads` that have an effect with this value of `positions`."""
        unread: set[str] = set()
        for positions, names in self.read_with.items():
            if positions != config.positions:
                unread.update(names)
        return tuple(name for name in self.reads if name not in unread)

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raise ValueError for settings of heads or positions with which the sub-layer cannot be built."""
        super().check(config, side)
        if config.positions == "rotary":
            width = config.d_k * config.rotary_share
            if abs(width - round(width)) > 1e-6 or round(width) % 2:
                raise ValueError(
                    f"rotary positions turn pairs of elements, and d_k · rotary_share = {config.d_k} · "
                    f"{config.rotary_share:g} = {width:g} is not an even number: change d_k or rotary_share"
                )
        if config.positions == "bias":
            exact = config.position_buckets // (2 if side == "decoder" else 4)
            if not exact or config.position_distance <= exact or (side == "encoder" and config.position_buckets % 2):
                raise ValueError(
                    f"position_buckets = {config.position_buckets}, position_distance = {config.position_distance}: an "
                    "encoder needs an even number of buckets from 4 on, a decoder 2 or more, and the distance must "
                    f"be larger than the {exact} distances that have a separate bucket"
                )
        if config.positions == "relative" and not (config.position_keys or config.position_values):
            raise ValueError("relative positions are in neither keys nor values: set position_keys or position_values")

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost. There are as many keys and values as queries.

        For each query-key pair and head, relative positions add d_k multiplications for keys and d_v for values.
        """
        cost = self._cost(config, length, length, side)
        if config.positions == "bias" and not config.position_shared:
            return cost._replace(params=cost.params + config.position_buckets * config.num_heads)
        if config.positions != "relative":
            return cost
        keys = config.d_k if config.position_keys else 0
        values = config.d_v if config.position_values else 0
        params = (2 * config.position_clip + 1) * (keys + values)
        if config.compatibility == "additive":  # the vectors are added to the keys, without a product
            kept, products_of_pair = cost.kept, values
        else:  # q is stored a second time
            kept, products_of_pair = cost.kept + length * config.num_heads * keys, keys + values
        pairs, _ = blocked(config.window, length, side)
        products = config.num_heads * pairs * products_of_pair
        return Cost(cost.params + params, cost.flops + 2 * products, kept)

    def shared(self, config: ModelSettings) -> dict[str, int]:
        """Return the number of weights in T5's table of position biases if all layers of a stack share it."""
        if config.positions != "bias" or not config.position_shared:
            return {}
        heads, buckets = config.num_heads, config.position_buckets
        return {f"position bias of {heads} heads in {buckets} buckets": heads * buckets}

    def _pairs(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> tuple[Length, Length]:
        return blocked(config.window, length, side)

    def sequential(self, length: int) -> int:
        """Return 1: all positions are computed at once."""
        return 1

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Return 1 for a position in the window, and inf for other positions."""
        return 1.0 if config.window is None or abs(distance) <= config.window // 2 else math.inf


class CrossAttentionSpec(AttentionSpec):
    """Options and cost of cross-attention: keys and values are projections of the encoder's output."""

    computation: ClassVar[str] = "model.layers.attention.multi_head:CrossAttention"
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True
    joins_widths: ClassVar[bool] = True
    attends: ClassVar[bool] = True

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Return the cost. The S keys and values are projections of vectors of width `other_width`."""
        cost = self._cost(config, length, memory, side)
        _, keys_values, _ = self._widths(config)
        more = ((self.other_width or config.d_model) - config.d_model) * keys_values
        return cost._replace(params=cost.params + more, flops=cost.flops + 2 * memory * more)
