"""Self-attention and cross-attention: settings and costs (section 3.2)."""

from typing import TYPE_CHECKING, ClassVar

from model.kinds.kind import Cost, Kind, Length, Side

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from model.config import ModelConfig


class _Attention(Kind):
    reads: ClassVar[tuple[str, ...]] = (
        "num_heads", "kv_heads", "d_k", "d_v", "compatibility", "attention_dropout", "qk_norm", "attention_gate",
        "bias",
    )  # fmt: skip

    def check(self, config: "ModelConfig", side: Side) -> None:
        """Raises ValueError if the heads of queries cannot be divided among those of keys and values."""
        if config.kv_heads and config.num_heads % config.kv_heads:
            raise ValueError(
                f"kv_heads = {config.kv_heads} does not divide num_heads = {config.num_heads}, and each head of keys "
                f"and values serves equally many queries: take one of {_divisors(config.num_heads)}"
            )

    def _widths(self, config: "ModelConfig") -> tuple[int, int, int]:
        """Of all queries, of all keys and values, of the average."""
        heads = config.kv_heads or config.num_heads
        return config.num_heads * config.d_k, heads * (config.d_k + config.d_v), config.num_heads * config.d_v

    def _params(self, config: "ModelConfig") -> int:
        """Of the projections, the gate, the comparison and the norms."""
        queries, keys_values, average = self._widths(config)
        inputs = queries + keys_values + (average if config.attention_gate else 0)
        biases = inputs + config.d_model if config.bias else 0
        compared = {"bilinear": queries * config.d_k, "additive": queries}.get(config.compatibility, 0)
        norms = 2 * config.d_k if config.qk_norm else 0
        return config.d_model * (inputs + average) + biases + compared + norms

    def _cost(self, config: "ModelConfig", length: Length, memory: Length) -> Cost:
        """Of `length` queries and `memory` keys and values.

        Products: D·h·(d_k + d_v) for a query, D·g·(d_k + d_v) for a key and value, h·(d_k + d_v) for each pair. A gate
        costs D·h·d_v and a bilinear form h·d_k² more for a query. An additive score is a product of d_k elements
        too. T² is counted whole, also for causal attention and windows: most kernels compute it.
        """
        queries, keys_values, average = self._widths(config)
        gate = average if config.attention_gate else 0
        bilinear = queries * config.d_k if config.compatibility == "bilinear" else 0
        of_queries = config.d_model * (queries + average + gate) + bilinear
        products = length * of_queries + memory * config.d_model * keys_values + (queries + average) * length * memory
        # q and k as they are compared, v, their average, and the weights; k and v for each head of queries
        kept = (length + memory) * (queries + average) + config.num_heads * length * memory
        if config.compatibility == "additive":  # the tanh of each pair in place of q and k
            kept = kept + queries * length * memory - (length + memory) * queries
        if bilinear:  # q also before the matrix, and the matrix for each sentence
            kept = kept + length * queries + bilinear
        if config.qk_norm:  # what the projections make, and q and k before the norm's weight with their deviations
            heads = config.kv_heads or config.num_heads
            normed = length * config.num_heads + memory * heads
            kept = kept + length * queries + memory * keys_values + normed * (config.d_k + 1)
        kept = kept + 2 * length * gate  # the gate, and the average before it
        return Cost(self._params(config), 2 * products, kept)

    def fused(self, config: "ModelConfig") -> bool:
        """Whether torch's fused kernels can compute it."""
        return config.compatibility != "additive"


class SelfAttention(_Attention):
    """Queries, keys and values from the same sequence."""

    reads: ClassVar[tuple[str, ...]] = (
        *_Attention.reads, "window", "position_clip", "position_keys", "position_values", "position_buckets",
        "position_distance", "position_shared", "rotary_share",
    )  # fmt: skip
    of_positions: ClassVar[dict[str, tuple[str, ...]]] = {
        "relative": ("position_clip", "position_keys", "position_values"),
        "bias": ("position_buckets", "position_distance", "position_shared"),
        "rotary": ("rotary_share",),
    }

    def reads_here(self, config: "ModelConfig") -> tuple[str, ...]:
        """Options of positions only with their kind of positions."""
        unread = {name for kind, names in self.of_positions.items() if kind != config.positions for name in names}
        return tuple(name for name in self.reads if name not in unread)

    def check(self, config: "ModelConfig", side: Side) -> None:
        """Raises ValueError for settings with which the sub-layer cannot be built."""
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
                    f"be larger than the {exact} distances that have a bucket of their own"
                )
        if config.positions == "relative" and not (config.position_keys or config.position_values):
            raise ValueError("relative positions are in neither keys nor values: set position_keys or position_values")

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """With T keys and values. Relative positions cost a product of d_k, and one of d_v, for each pair."""
        cost = self._cost(config, length, length)
        if config.positions == "bias" and not config.position_shared:
            return cost._replace(params=cost.params + config.position_buckets * config.num_heads)
        if config.positions != "relative":
            return cost
        keys, values = config.position_keys * config.d_k, config.position_values * config.d_v
        params = (2 * config.position_clip + 1) * (keys + values)
        # an additive score takes the vectors into the keys
        products = config.num_heads * length**2 * (values + (0 if config.compatibility == "additive" else keys))
        kept = 0 if config.compatibility == "additive" else length * config.num_heads * keys  # q once more
        return Cost(cost.params + params, cost.flops + 2 * products, cost.kept + kept)

    def shared(self, config: "ModelConfig") -> dict[str, int]:
        """T5's table of a stack."""
        if config.positions != "bias" or not config.position_shared:
            return {}
        heads, buckets = config.num_heads, config.position_buckets
        return {f"position bias of {heads} heads in {buckets} buckets": heads * buckets}

    def fused(self, config: "ModelConfig") -> bool:
        return super().fused(config) and config.positions != "relative"

    def sequential(self, length: int) -> int:
        """All positions at once."""
        return 1

    def operations(self, config: "ModelConfig", distances: "NDArray[np.int64]", side: Side) -> "NDArray[np.float64]":
        """One, to every position of the window."""
        import numpy as np

        reach = len(distances) if config.window is None else config.window // 2
        return np.where(np.abs(distances) <= reach, 1.0, np.inf)


class CrossAttention(_Attention):
    """Queries from the decoder, keys and values from the encoder's output."""

    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    def cost(self, config: "ModelConfig", length: Length, memory: Length, side: Side) -> Cost:
        """With S keys and values."""
        return self._cost(config, length, memory)


def _divisors(number: int) -> str:
    return ", ".join(str(n) for n in range(1, number + 1) if number % n == 0)
