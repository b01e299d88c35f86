"""Position information inside self-attention: `relative`, `bias`, `alibi`, `rotary`.

A distance is the key's position minus the query's position, so it is negative for earlier keys.
Shapes: B sentences, T positions, H heads, Q queries, M memory positions, K d_k, V d_v, W rotated elements, P = W / 2.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from model.parts.positions import sinusoids
from model.settings import ModelSettings


class Distances(nn.Module):
    """Attention without position information, and the base class of the classes that add it."""

    reads_distance = False  # whether `bias`, `keys` or `values` depend on distances
    fused = True  # whether torch's attention kernels can be used, which requires that `keys` and `values` return None

    def __init__(self, config: ModelSettings) -> None:
        super().__init__()

    def turned(self, x_BHTK: Tensor, first: int, last: int) -> Tensor:
        """Return the queries or keys x, rotated by their positions. Only the subclass Rotary changes them.

        The positions are first … last − 1. If last = first + 1, all vectors have the position `first`.
        """
        return x_BHTK

    def bias(self, distance_QM: Tensor, causal: bool) -> Tensor | None:
        """Return the bias (H, Q, M) to add to the scores, or None."""
        return None

    def keys(self, distance_QM: Tensor) -> Tensor | None:
        """Return the vectors (Q, M, K) to add to the key of each pair, or None."""
        return None

    def values(self, distance_QM: Tensor) -> Tensor | None:
        """Return the vectors (Q, M, V) to add to the value of each pair, or None."""
        return None

    def initialise(self) -> None:
        """Draw the weights, if the class has any."""


class Relative(Distances):
    """A trained vector per distance, clipped to k, in keys and values (Shaw 2018, arXiv 1803.02155, section 3.2).

    a_ij = w_clip(j − i, −k, k). Each layer has one table for all heads. The paper specifies no initialisation; this
    class uses the Glorot uniform distribution, as for the other matrices.
    """

    reads_distance = True
    fused = False

    def __init__(self, config: ModelSettings) -> None:
        super().__init__(config)
        self.clip = config.position_clip
        rows = 2 * self.clip + 1
        self.key_weight = nn.Parameter(torch.empty(rows, config.d_k)) if config.position_keys else None
        self.value_weight = nn.Parameter(torch.empty(rows, config.d_v)) if config.position_values else None

    def keys(self, distance_QM: Tensor) -> Tensor | None:
        return None if self.key_weight is None else F.embedding(self._row(distance_QM), self.key_weight)

    def values(self, distance_QM: Tensor) -> Tensor | None:
        return None if self.value_weight is None else F.embedding(self._row(distance_QM), self.value_weight)

    def _row(self, distance_QM: Tensor) -> Tensor:
        return distance_QM.clamp(-self.clip, self.clip) + self.clip

    def initialise(self) -> None:
        for weight in self.parameters():
            nn.init.xavier_uniform_(weight)


class DistanceBias(Distances):
    """A trained number per head and bucket of distances, added to the scores (T5: Raffel 2020, arXiv 1910.10683, 2.1).

    The initialisation is that of Hugging Face's T5: N(0, 1/√d_model). With position_shared, the layers of a stack share
    one table (`share`).
    """

    reads_distance = True

    def __init__(self, config: ModelSettings) -> None:
        super().__init__(config)
        self.distance, self.shared = config.position_distance, config.position_shared
        self.std = config.d_model**-0.5
        self.weight: nn.Parameter | None = nn.Parameter(torch.empty(config.position_buckets, config.num_heads))
        self.owner: tuple[DistanceBias, ...] = ()  # a tuple, so that only the owner registers the table as a parameter

    @property
    def table(self) -> Tensor:
        """The table of biases (buckets, H)."""
        weight = self.owner[0].weight if self.owner else self.weight
        assert weight is not None
        return weight

    def bias(self, distance_QM: Tensor, causal: bool) -> Tensor | None:
        table = self.table
        bucket_QM = buckets(distance_QM, causal, table.shape[0], self.distance)
        return F.embedding(bucket_QM, table).permute(2, 0, 1)

    def initialise(self) -> None:
        if self.weight is not None:
            nn.init.normal_(self.weight, std=self.std)


def buckets(distance_QM: Tensor, causal: bool, count: int, farthest: int) -> Tensor:
    """Return the bucket of each distance, in 0 … count − 1 (T5's rule, as in Mesh TensorFlow).

    The first half of the buckets holds one distance each. The other buckets grow logarithmically up to `farthest`, and
    the last one also holds all larger distances. If `causal` is false, keys after the query use the upper half of the
    buckets.
    """
    if causal:
        side, away_QM = torch.zeros_like(distance_QM), (-distance_QM).clamp(min=0)
    else:
        count //= 2
        side, away_QM = (distance_QM > 0) * count, distance_QM.abs()
    exact = count // 2
    # fp32 and this order of operations give the same buckets as the published code for distances at bucket boundaries.
    ratio = torch.log(away_QM.clamp(min=exact).float() / exact) / math.log(farthest / exact)
    far_QM = (exact + (ratio * (count - exact)).long()).clamp(max=count - 1)
    return side + torch.where(away_QM < exact, away_QM, far_QM)


def share(stack: nn.Module) -> None:
    """Make all distance biases with position_shared use the first table of the same size in the stack."""
    owners: dict[torch.Size, DistanceBias] = {}
    for module in stack.modules():
        if isinstance(module, DistanceBias) and module.shared and module.weight is not None:
            owner = owners.setdefault(module.weight.shape, module)
            if owner is not module:
                module.weight, module.owner = None, (owner,)


class Alibi(Distances):
    """−m·|distance| added to the scores, with a fixed slope m per head (Press 2022, arXiv 2108.12409, section 3).

    The paper has decoders only. In encoders, earlier and later keys at the same distance get the same bias.
    """

    reads_distance = True

    def __init__(self, config: ModelSettings) -> None:
        super().__init__(config)
        self.slopes_H: Tensor
        self.register_buffer("slopes_H", torch.tensor(slopes(config.num_heads)), persistent=False)

    def bias(self, distance_QM: Tensor, causal: bool) -> Tensor | None:
        return self.slopes_H[:, None, None] * -distance_QM.abs()


def slopes(heads: int) -> list[float]:
    """Return the slopes of ALiBi: 2^(−8/n), 2^(−16/n), … for n heads, if n is a power of two.

    For other numbers of heads, follow the authors' code: take the slopes for the next lower power of two n, then every
    second slope of 2n heads.
    """
    power = 1 << (heads.bit_length() - 1)
    more = [2 ** (-4 * i / power) for i in range(1, 2 * (heads - power), 2)]
    return [2 ** (-8 * i / power) for i in range(1, power + 1)] + more


class Rotary(Distances):
    """Rotation of queries and keys by angles proportional to their position (Su 2021, arXiv 2104.09864, equation 34).

    Pair i of the first `width` elements is rotated by the angle position · 10000^(−2i / width), so that the product of
    a query and a key depends on their distance alone. rotary_share sets which share of a head's width is rotated
    (rotary_pct of GPT-NeoX, arXiv 2204.06745).
    """

    def __init__(self, config: ModelSettings) -> None:
        super().__init__(config)
        self.width = round(config.d_k * config.rotary_share)
        self.table_TW: Tensor
        self.register_buffer("table_TW", sinusoids(config.max_length, self.width), persistent=False)

    def turned(self, x_BHTK: Tensor, first: int, last: int) -> Tensor:
        table_TW = self.table_TW
        if last > table_TW.shape[0]:
            table_TW = sinusoids(last, self.width).to(table_TW)
        sin_TP, cos_TP = table_TW[first:last, 0::2], table_TW[first:last, 1::2]
        x_P, y_P = x_BHTK[..., 0 : self.width : 2], x_BHTK[..., 1 : self.width : 2]
        turned = torch.stack((x_P * cos_TP - y_P * sin_TP, x_P * sin_TP + y_P * cos_TP), dim=-1).flatten(-2)
        return torch.cat((turned.to(x_BHTK.dtype), x_BHTK[..., self.width :]), dim=-1)


DISTANCES: dict[str, type[Distances]] = {
    "relative": Relative,
    "bias": DistanceBias,
    "alibi": Alibi,
    "rotary": Rotary,
}
