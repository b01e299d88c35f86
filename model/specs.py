"""The kinds of sub-layer as planning sees them, without torch: options, settings that each reads, parameters and cost.

Their computation is in model/layers.
"""

import math
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import Field

from model.settings import ModelSettings
from model.strict import StrictModel

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


Length = TypeVar("Length", float, "NDArray[np.int64]")  # one length, or the lengths of many sentences
Side = Literal["encoder", "decoder"]


def class_sizes(vocab_size: int) -> tuple[int, int]:
    """Pieces of a class, and classes, of a hierarchical softmax: about √V each; no class is empty."""
    size = math.isqrt(max(0, vocab_size - 1)) + 1
    return size, -(-vocab_size // size)


class Cost(NamedTuple):
    """What one sub-layer needs for one sequence, without its residual connection and norm."""

    params: int  # trained weights
    flops: Any  # of a forward pass; a multiplication and an addition are two, and only matrix products count
    kept: Any  # values that the forward pass keeps for the backward pass, besides the input
    active: int | None = None  # weights that take part in one token's computation; None: all


class Spec(StrictModel):
    """Options of one sub-layer of a line. A kind is a subclass, and a line of architecture.KINDS and stack.SUBLAYERS.

    An option that has the name of a setting in `reads` replaces that setting for this sub-layer.
    """

    reads: ClassVar[tuple[str, ...]] = ()  # settings of ModelSettings that the sub-layer reads, besides d_model
    sides: ClassVar[tuple[Side, ...]] = ("encoder", "decoder")
    reads_memory: ClassVar[bool] = False  # whether it reads the encoder's output
    attends: ClassVar[bool] = False  # whether it tells a search its weights of the source (StepContext.weights_LBKM)
    compiles: ClassVar[bool] = True  # whether torch's compiler makes one graph of it
    bare: ClassVar[bool] = False  # whether no dropout, norm or residual connection surrounds it

    # These follow from the line and are no options: where it stands; the width of the encoder's output, or of what a
    # projection reads (0: d_model).
    side: Side = "encoder"
    other_width: int = 0

    def reads_here(self, config: ModelSettings) -> tuple[str, ...]:
        """Those of `reads` that matter with these settings: a clip of distances only if positions are relative."""
        return self.reads

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raises ValueError for settings with which the sub-layer cannot be built."""

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """For a sequence of `length` positions and `memory` positions of the encoder's output."""
        raise NotImplementedError

    def sequential(self, length: int) -> int:
        """Operations over `length` positions that must follow one another (Table 1); 0 if each is by itself."""
        return 0

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """Operations between an output and the input `distance` positions before it; inf where it does not read it.

        A decoder's sub-layer is not asked for the future. The default is that of position-wise sub-layers.
        """
        return 0.0 if distance == 0 else math.inf

    def shared(self, config: ModelSettings) -> dict[str, int]:
        """Weights that sub-layers of a stack have in common, by name; not in `cost`."""
        return {}


# --- Self-attention and cross-attention (section 3.2)


BLOCK = 16  # queries of a block at least: on a processor the fastest of 16, 32, 64 and 128 (torch 2.13, fp32)


def blocks(window: int, side: Side) -> tuple[int, int, int]:
    """A window in blocks: queries of a block, memory positions before its first query, and after its last one.

    A block is as long as these together, so that each block of the memory is read by two blocks of queries.
    """
    reach = window // 2
    after = 0 if side == "decoder" else reach
    return max(BLOCK, reach + after), reach, after


def blocked(window: int | None, length: Length, side: Side) -> tuple[Length, Length]:
    """Pairs of query and key that self-attention computes, and memory positions that it stores for them.

    Without a window: all pairs. With one: those of its blocks, O(r·n), where these are less than half of all.
    """
    if window is None:
        return length**2, length
    size, before, after = blocks(window, side)
    stored = -(-length // size) * (size + before + after)
    saves = 2 * stored * size < length**2  # from there on blocks are faster
    return length**2 + saves * (stored * size - length**2), length + saves * (stored - length)


class _Attention(Spec):
    reads: ClassVar[tuple[str, ...]] = (
        "num_heads", "kv_heads", "d_k", "d_v", "compatibility", "attention_dropout", "qk_norm", "attention_gate",
        "bias",
    )  # fmt: skip

    def check(self, config: ModelSettings, side: Side) -> None:
        """Raises ValueError if the heads of queries cannot be divided among those of keys and values."""
        if config.kv_heads and config.num_heads % config.kv_heads:
            divisors = [n for n in range(1, config.num_heads + 1) if config.num_heads % n == 0]
            raise ValueError(
                f"kv_heads = {config.kv_heads} does not divide num_heads = {config.num_heads}, and each head of keys "
                f"and values serves equally many queries: take one of {', '.join(map(str, divisors))}"
            )

    def _widths(self, config: ModelSettings) -> tuple[int, int, int]:
        """Of all queries, of all keys and values, of the average."""
        heads = config.kv_heads or config.num_heads
        return config.num_heads * config.d_k, heads * (config.d_k + config.d_v), config.num_heads * config.d_v

    def _params(self, config: ModelSettings) -> int:
        """Of the projections, the gate, the comparison and the norms."""
        queries, keys_values, average = self._widths(config)
        inputs = queries + keys_values + (average if config.attention_gate else 0)
        biases = inputs + config.d_model if config.bias else 0
        compared = {"bilinear": queries * config.d_k, "additive": queries}.get(config.compatibility, 0)
        norms = 2 * config.d_k if config.qk_norm else 0
        return config.d_model * (inputs + average) + biases + compared + norms

    def _pairs(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> tuple[Length, Length]:
        """Pairs of query and key that are computed, and memory positions that are stored for them."""
        return length * memory, memory

    def _cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """Of `length` queries and `memory` keys and values.

        Products: D·h·(d_k + d_v) for a query, D·g·(d_k + d_v) for a key and value, h·(d_k + d_v) for each pair. A gate
        costs D·h·d_v and a bilinear form h·d_k² more for a query. An additive score is a product of d_k elements
        too. T² is counted whole, also for causal attention: most kernels compute it.
        """
        pairs, stored = self._pairs(config, length, memory, side)
        queries, keys_values, average = self._widths(config)
        gate = average if config.attention_gate else 0
        bilinear = queries * config.d_k if config.compatibility == "bilinear" else 0
        of_queries = config.d_model * (queries + average + gate) + bilinear
        products = length * of_queries + memory * config.d_model * keys_values + (queries + average) * pairs
        # q and k as they are compared, v, their average, and the weights; k and v for each head of queries
        kept = (length + stored) * (queries + average) + config.num_heads * pairs
        if config.compatibility == "additive":  # the tanh of each pair in place of q and k
            kept = kept + queries * pairs - (length + stored) * queries
        if bilinear:  # q also before the matrix, and the matrix for each sentence
            kept = kept + length * queries + bilinear
        if config.qk_norm:  # what the projections make, and q and k before the norm's weight with their deviations
            heads = config.kv_heads or config.num_heads
            normed = length * config.num_heads + memory * heads
            kept = kept + length * queries + memory * keys_values + normed * (config.d_k + 1)
        kept = kept + 2 * length * gate  # the gate, and the average before it
        return Cost(self._params(config), 2 * products, kept)


class SelfAttentionSpec(_Attention):
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

    def reads_here(self, config: ModelSettings) -> tuple[str, ...]:
        """Options of positions only with their kind of positions."""
        unread = {name for kind, names in self.of_positions.items() if kind != config.positions for name in names}
        return tuple(name for name in self.reads if name not in unread)

    def check(self, config: ModelSettings, side: Side) -> None:
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

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """With T keys and values. Relative positions cost a product of d_k, and one of d_v, for each pair."""
        cost = self._cost(config, length, length, side)
        if config.positions == "bias" and not config.position_shared:
            return cost._replace(params=cost.params + config.position_buckets * config.num_heads)
        if config.positions != "relative":
            return cost
        keys, values = config.position_keys * config.d_k, config.position_values * config.d_v
        params = (2 * config.position_clip + 1) * (keys + values)
        # an additive score takes the vectors into the keys
        pairs, _ = blocked(config.window, length, side)
        products = config.num_heads * pairs * (values + (0 if config.compatibility == "additive" else keys))
        kept = 0 if config.compatibility == "additive" else length * config.num_heads * keys  # q once more
        return Cost(cost.params + params, cost.flops + 2 * products, cost.kept + kept)

    def shared(self, config: ModelSettings) -> dict[str, int]:
        """T5's table of a stack."""
        if config.positions != "bias" or not config.position_shared:
            return {}
        heads, buckets = config.num_heads, config.position_buckets
        return {f"position bias of {heads} heads in {buckets} buckets": heads * buckets}

    def _pairs(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> tuple[Length, Length]:
        return blocked(config.window, length, side)

    def sequential(self, length: int) -> int:
        """All positions at once."""
        return 1

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """One, to every position of the window."""
        return 1.0 if config.window is None or abs(distance) <= config.window // 2 else math.inf


class CrossAttentionSpec(_Attention):
    """Queries from the decoder, keys and values from the encoder's output."""

    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True
    attends: ClassVar[bool] = True

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """With S keys and values, of an encoder's output that may have another width."""
        cost, (_, keys_values, _) = self._cost(config, length, memory, side), self._widths(config)
        more = ((self.other_width or config.d_model) - config.d_model) * keys_values
        return cost._replace(params=cost.params + more, flops=cost.flops + 2 * memory * more)


# --- The position-wise feed-forward network (section 3.3)


# Values of d_ff that are kept: the operand of W_2, what the activation needs, both factors of a gate.
_KEPT = {"relu": 1, "gelu": 2, "swish": 2, "relu2": 2, "elu": 2, "selu": 2, "sigmoid": 1, "softplus": 2}
_KEPT_GATED = {"glu": 3, "bilinear": 3, "reglu": 3, "geglu": 4, "swiglu": 4}


class FeedForwardSpec(Spec):
    """Two matrices with an activation in between; three for a gated one."""

    reads: ClassVar[tuple[str, ...]] = ("d_ff", "activation", "activation_dropout", "bias")

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """T·2·D·d_ff products; T·3·D·d_ff with a gate."""
        matrices = 3 if config.activation in _KEPT_GATED else 2
        biases = (matrices - 1) * config.d_ff + config.d_model if config.bias else 0
        weights = matrices * config.d_model * config.d_ff
        kept = {**_KEPT, **_KEPT_GATED}[config.activation]
        return Cost(weights + biases, 2 * length * weights, kept * length * config.d_ff)


# --- A mixture of experts


class ExpertsSpec(FeedForwardSpec):
    """Several feed-forward networks, of which each position uses a few, in place of one."""

    compiles: ClassVar[bool] = False  # how many positions an expert gets depends on the data

    count: int = Field(4, ge=1)
    active: int = Field(1, ge=1)  # experts of one position
    gate: Literal["softmax", "noisy_top_k"] = "softmax"
    importance: float = Field(0.0, ge=0)  # weight of the loss of unequal sums of gates
    load: float = Field(0.0, ge=0)  # weight of the loss of unequal numbers of positions
    capacity: float | None = Field(None, gt=0)  # of an expert in training, in equal shares; no limit if unset

    def check(self, config: ModelSettings, side: Side) -> None:
        """A position cannot have more experts than there are."""
        super().check(config, side)
        if self.active > self.count:
            raise ValueError(f"active={self.active} of count={self.count} experts: active may be at most count")
        if self.load and (self.gate != "noisy_top_k" or self.active == self.count):
            raise ValueError(
                f"load={self.load:g} needs the noise of gate=noisy_top_k, and fewer active experts than count: it is "
                "the loss of the chance to be chosen"
            )

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """`active` times that of one network, and T·D·count products of the router, twice that with noise."""
        one = super().cost(config, length, memory, side)
        router = config.d_model * self.count * (2 if self.gate == "noisy_top_k" else 1)
        # Of each position and expert: the network's input, what it keeps, its output; and the router's weights.
        kept = self.active * (one.kept + length * 2 * config.d_model) + length * self.count
        return Cost(
            params=self.count * one.params + router,
            flops=self.active * one.flops + 2 * length * router,
            kept=kept,
            active=self.active * one.params + router,
        )


# --- Convolution over positions (one type of layer of Table 1)


class ConvolutionSpec(Spec):
    """A window of `kernel` inputs, `dilation` positions apart: up to the present one in decoders, else around it."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)

    kernel: int = Field(3, ge=1)
    gated: bool = False  # a gated linear unit on the output
    rectified: bool = False  # a ReLU on the output
    separable: bool = False  # each channel alone over positions, then a matrix over channels
    dilation: int = Field(1, ge=1)

    @property
    def reach(self) -> int:
        """Positions from a window's first input to its last."""
        return (self.kernel - 1) * self.dilation

    def check(self, config: ModelSettings, side: Side) -> None:
        """An even kernel has no middle, and an output has one activation."""
        if self.gated and self.rectified:
            raise ValueError("gated=true and rectified=true: the output has a gated linear unit or a ReLU, take one")
        if side == "encoder" and self.kernel % 2 == 0:
            raise ValueError(
                f"kernel={self.kernel} has no middle, and in an encoder the window lies around its position: take an "
                f"odd one, such as kernel={self.kernel + 1}"
            )

    def sequential(self, length: int) -> int:
        """All positions at once."""
        return 1

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """One, to the inputs of the window."""
        before = distance + (self.reach // 2 if side == "encoder" else 0)  # from the window's last input
        return 1.0 if 0 <= before <= self.reach and before % self.dilation == 0 else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """T·k·D·D' products, separable T·(k·D + D·D'), with D' = 2·D if gated."""
        width = config.d_model
        output = 2 * width if self.gated else width
        weights = width * self.kernel + width * output if self.separable else self.kernel * width * output
        kept = width * (1 if self.separable else self.kernel) + (output if self.gated else 0)
        kept += width if self.rectified else 0
        return Cost(weights + (output if config.bias else 0), 2 * length * weights, length * kept)


# --- Another width


class ProjectionSpec(Spec):
    """A matrix to another width, which the layers after it have; nothing surrounds it."""

    reads: ClassVar[tuple[str, ...]] = ("bias",)
    bare: ClassVar[bool] = True

    width: int = Field(ge=1)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """T·D·width products."""
        weights = (self.other_width or config.d_model) * self.width
        return Cost(weights + (self.width if config.bias else 0), 2 * length * weights, length * self.other_width)


# --- The average of all positions so far


class AverageSpec(FeedForwardSpec):
    """Average attention, in place of a decoder's self-attention. Each of its two parts can be left out."""

    sides: ClassVar[tuple[Side, ...]] = ("decoder",)

    feed_forward: bool = True
    gated: bool = True

    def reads_here(self, config: ModelSettings) -> tuple[str, ...]:
        """Without the network and the gates there is nothing to set."""
        inner = super().reads_here(config) if self.feed_forward else ()
        return tuple(dict.fromkeys((*inner, *(("bias",) if self.gated else ()))))

    def sequential(self, length: int) -> int:
        """A cumulative sum is one operation in training."""
        return 1

    def operations(self, config: ModelSettings, distance: int, side: Side) -> float:
        """One, to every position so far."""
        return 1.0 if distance >= 0 else math.inf

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """The feed-forward network, and T·(2·D)² products of the gates."""
        params, flops, kept, _ = super().cost(config, length, memory, side) if self.feed_forward else Cost(0, 0, 0)
        wide = 2 * config.d_model
        if self.feed_forward:
            kept = kept + length * config.d_model  # the average, its input
        if self.gated:
            params += wide**2 + (wide if config.bias else 0)
            flops = flops + 2 * length * wide**2
            kept = kept + length * 2 * wide  # the gates' input and the gates
        return Cost(params, flops, kept)


# --- One position of the encoder's output, in place of attention


class _OnePosition(Spec):
    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    def check(self, config: ModelSettings, side: Side) -> None:
        """Its output does not depend on its input, which passes by the residual connection alone."""
        if not config.residual:
            raise ValueError("it reads the source alone, so residual = false would cut off what stands before it")
        if config.norm in ("pre", "sandwich"):
            raise ValueError(
                f'it reads the source alone, so norm = "{config.norm}" has no input to normalise: write (norm=none)'
            )


class LastStateSpec(_OnePosition):
    """The last position, the same for every target position: a context of fixed size."""

    backward: bool = False  # the first position, the last one that an encoder of lstm(backward=true) computes

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """D² products, once for the sentence."""
        weights = config.d_model**2
        return Cost(weights, 2 * weights, config.d_model)


class SamePositionSpec(_OnePosition):
    """The position that has the target position's own index."""

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """S·D² products."""
        weights = config.d_model**2
        return Cost(weights, 2 * memory * weights, memory * config.d_model)


# --- A memory that is asked several times, in place of cross-attention


class MemoryNetworkSpec(Spec):
    """An end-to-end memory network over the encoder's output."""

    sides: ClassVar[tuple[Side, ...]] = ("decoder",)
    reads_memory: ClassVar[bool] = True

    hops: int = Field(3, ge=1)

    def cost(self, config: ModelSettings, length: Length, memory: Length, side: Side) -> Cost:
        """D² products of B and `hops` times of H for a query, 2·D² for a memory, `hops` times 2·D for each pair."""
        width = config.d_model
        of_queries = (1 + self.hops) * width**2
        products = length * of_queries + 2 * memory * width**2 + self.hops * 2 * width * length * memory
        kept = (self.hops * length + 2 * memory) * width + self.hops * length * memory
        return Cost(4 * width**2, 2 * products, kept)
