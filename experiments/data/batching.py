"""Assign pairs to batches, as a pure function of (seed, step); the batches as padded arrays. Imports no torch.

"Sentence pairs were batched together by approximate sequence length. Each training batch contained a set of sentence
pairs containing approximately 25000 source tokens and 25000 target tokens" (section 5.1). Here tokens are pieces,
EOS counted, padding not, and no batch holds more than `tokens_per_batch` of either side.

Randomness is raw bits of PCG64, and sorts are stable, so another version of numpy makes the same plan.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiments.data.encoding.sides import Sides
from experiments.data.encoding.tokenizer import BOS_ID, EOS_ID, PAD_ID
from experiments.errors import UserError

Indices = NDArray[np.int64]

# Measured on multi30k (V 8,000), German news (V 8,000) and the built-in corpus at 4,096 tokens: padding 5 to 7 %, and
# two pairs of a batch share a batch in the next epoch in about a third of the cases (2.0: a quarter, padding 7 %).
BAND = 1.05  # lengths within 5 % count as equal
MIXING = 1.25  # a pair moves from its place in the order of lengths by up to so many batches' tokens …
MIXING_SHARE = 1 / 40  # … and by at most this fraction of the epoch, so that few, large batches have little padding


class BatchPlan:
    """Batches of pairs of similar length; every pair occurs once per epoch, in different batches and another order.

    source_lengths, target_lengths: pieces of every pair, EOS counted. Steps and epochs count from 0.
    Raises UserError if a single pair exceeds `tokens_per_batch`.
    """

    def __init__(self, source_lengths: ArrayLike, target_lengths: ArrayLike, tokens_per_batch: int, seed: int) -> None:
        self._source = np.asarray(source_lengths, np.int64)
        self._target = np.asarray(target_lengths, np.int64)
        self._longest = np.maximum(self._source, self._target)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self._starts = [0]  # the first step of each epoch seen so far, and of the next
        self._cached: tuple[int, list[Indices]] = (-1, [])
        self._check()

    @property
    def lengths(self) -> tuple[Indices, Indices]:
        """Source and target pieces of every pair."""
        return self._source, self._target

    def batch(self, step: int) -> Indices:
        """Indices of the pairs of update number `step`."""
        epoch, index = self.locate(step)
        return self.epoch(epoch)[index]

    def locate(self, step: int) -> tuple[int, int]:
        """(epoch, batch within it) of a step."""
        while self._starts[-1] <= step:
            self._starts.append(self._starts[-1] + len(self.epoch(len(self._starts) - 1)))
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return epoch, step - self._starts[epoch]

    def seen(self, steps: int) -> Indices:
        """Count the uses of each pair in the first `steps` updates: one per complete epoch, and the current epoch's."""
        epoch, index = self.locate(steps)
        counts = np.full(len(self._longest), epoch)
        for batch in self.epoch(epoch)[:index]:
            counts[batch] += 1
        return counts

    def epoch(self, epoch: int) -> list[Indices]:
        """All batches of an epoch, in the order of its steps. The last epoch is cached."""
        if self._cached[0] != epoch:
            self._cached = (epoch, self._plan(epoch))
        return self._cached[1]

    def _plan(self, epoch: int) -> list[Indices]:
        bits = np.random.PCG64(np.random.SeedSequence([self.seed, epoch]))
        order = self._mixed(self._by_length(bits), bits)
        bounds = _even_bounds(self._source[order], self._target[order], self.tokens_per_batch)
        batches = [order[start:end] for start, end in pairwise(bounds)]
        return [batches[i] for i in np.argsort(bits.random_raw(len(batches)), kind="stable")]

    def _by_length(self, bits: np.random.PCG64) -> Indices:
        """Sort by bands of the longer side; within a band by the difference of the sides, up and down; random ties."""
        shift = int(bits.random_raw()) / 2**64  # where the bands begin differs by epoch
        band = np.floor(np.log(self._longest) / np.log(BAND) + shift).astype(np.int64)
        difference = np.clip(self._source - self._target, -(2**19), 2**19 - 1)
        snake = np.where(band % 2, difference, ~difference) + 2**19
        chance = (bits.random_raw(len(band)) >> np.uint64(31)).astype(np.int64)
        return np.argsort((band << 53) | (snake << 33) | chance, kind="stable")  # one key: a fifth of lexsort's time

    def _mixed(self, order: Indices, bits: np.random.PCG64) -> Indices:
        """Move pairs a little from their places, so that epochs differ even if few pairs are equally long."""
        places = np.cumsum(self._longest[order])
        reach = int(min(MIXING * self.tokens_per_batch, MIXING_SHARE * int(places[-1])))
        moved = places + (bits.random_raw(len(order)) % np.uint64(reach + 1)).astype(np.int64)
        return order[np.argsort(moved, kind="stable")]

    def _check(self) -> None:
        pair = int(self._longest.argmax())
        if self._longest[pair] > self.tokens_per_batch:
            raise UserError(
                f"training.tokens_per_batch = {self.tokens_per_batch} is less than one sentence pair: training pair "
                f"{pair + 1:,} of the {len(self._longest):,} kept has {self._source[pair]} source and "
                f"{self._target[pair]} target pieces, EOS counted. Set training.tokens_per_batch to "
                f"{self._longest[pair]} or more, or data.max_pieces to {self.tokens_per_batch} or less, which drops "
                "such pairs."
            )


def _bounds(source_sums: Indices, target_sums: Indices, cap: int) -> list[int]:
    """Cut a row of pairs into batches, each as full as `cap` allows; sums (N+1,) start with 0."""
    bounds = [0]
    while bounds[-1] < len(source_sums) - 1:
        start = bounds[-1]
        ends = (int(np.searchsorted(sums, sums[start] + cap, side="right")) - 1 for sums in (source_sums, target_sums))
        bounds.append(min(ends))
    return bounds


def _even_bounds(source: Indices, target: Indices, cap: int) -> list[int]:
    """Return bounds of as few batches as `_bounds` gives, but about equally full, without a small last one."""
    source_sums, target_sums = (np.concatenate([[0], np.cumsum(lengths)]) for lengths in (source, target))
    return _evened(lambda tried: _bounds(source_sums, target_sums, tried), int(max(source.max(), target.max())), cap)


def _evened(cut: Callable[[int], list[int]], low: int, cap: int) -> list[int]:
    """The result of `cut` for the smallest cap from `low` that gives as many parts as `cap` does."""
    bounds, high = cut(cap), cap
    while low < high:
        middle = (low + high) // 2
        tried = cut(middle)
        if len(tried) == len(bounds):
            bounds, high = tried, middle
        else:
            low = middle + 1
    return bounds


def deal(source_lengths: ArrayLike, target_lengths: ArrayLike, indices: Indices, share: tuple[int, int]) -> Indices:
    """Part `share[0]` of `share[1]` of some pairs, with as many pairs of each length as other parts; may be empty."""
    rank, parts = share
    if parts == 1:
        return indices
    longest = np.maximum(np.asarray(source_lengths)[indices], np.asarray(target_lengths)[indices])
    return indices[np.argsort(longest, kind="stable")][rank::parts]


def split(source_lengths: ArrayLike, target_lengths: ArrayLike, indices: Indices, max_tokens: int) -> list[Indices]:
    """Cut pairs into micro-batches of at most `max_tokens` places per side, padding counted; at least one pair each.

    As few as possible, about equally full, each with pairs of similar length.
    """
    if not len(indices):
        return []
    longest = np.maximum(np.asarray(source_lengths)[indices], np.asarray(target_lengths)[indices])
    order = np.argsort(longest, kind="stable")
    rising = longest[order]

    def cut(cap: int) -> list[int]:
        bounds = [0]
        while bounds[-1] < len(rising):
            places = np.arange(1, len(rising) - bounds[-1] + 1) * rising[bounds[-1] :]
            bounds.append(bounds[-1] + max(1, int(np.searchsorted(places, cap, side="right"))))
        return bounds

    return [indices[order[start:end]] for start, end in pairwise(_evened(cut, int(rising[-1]), max_tokens))]


# --- Pairs as padded arrays: B batch, S source, T target
# PAD fills up; masks are where an array differs from PAD.


Array = TypeVar("Array")
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Batch(Generic[Array]):
    """Sentence pairs of one (micro-)batch; knows no device. `Array` is numpy's here, torch's in training."""

    source: Array  # (B, S) int64: pieces EOS PAD…
    target_input: Array  # (B, T) int64: BOS pieces PAD…, what the decoder reads
    target_output: Array  # (B, T) int64: pieces EOS PAD…, the labels
    num_source_tokens: int  # EOS counted, padding not
    num_target_tokens: int
    # (N,) int64: places in target_output, flattened: of all real labels, and of padding behind them where the loss has
    # a fixed number of rows; None: not made ahead
    real: Array | None = None


def collate(pairs: Sides, indices: Ids, shape: tuple[int, int, int] | None = None) -> Batch[Ids]:
    """Make the batch of some pairs: as small as possible, or of the given shape (B, S, T), padded with rows of PAD.

    No pairs give one row of PAD: a process with no pairs of a batch still takes part in the step.
    """
    source_lengths, target_lengths = (side.lengths[indices] for side in pairs.values())
    tight = (max(1, len(indices)), *(int(lengths.max(initial=1)) for lengths in (source_lengths, target_lengths)))
    count, source_width, target_width = shape or tight
    rows = np.arange(len(indices))
    source = pairs["source"].gather(indices, source_width, PAD_ID)
    source[rows, source_lengths - 1] = EOS_ID
    target_output = pairs["target"].gather(indices, target_width, PAD_ID)
    target_input = np.full_like(target_output, PAD_ID)
    target_input[:, 0] = BOS_ID
    target_input[:, 1:] = target_output[:, :-1]
    target_output[rows, target_lengths - 1] = EOS_ID
    if more := count - len(indices):
        arrays = (source, target_input, target_output)
        padded = (np.pad(array, ((0, more), (0, 0)), constant_values=PAD_ID) for array in arrays)
        source, target_input, target_output = padded
    return Batch(source, target_input, target_output, int(source_lengths.sum()), int(target_lengths.sum()))


# --- Few shapes for many batches: the shapes to which micro-batches are padded
# A compiled step has a graph per shape; a processor's bf16 products have kernels per shape, which oneDNN builds at the
# first use. On an Intel Xeon with AMX, a training on free shapes spent 37 % of its time building them.
# A shape is (B sentences, S source, T target). Micro-batches of the first epochs are grouped; a group is as large as
# the largest of its members. Groups whose union costs least are joined until few are left. Towards the end, after every
# joining, each micro-batch moves to the cheapest group that holds it, and groups shrink to their members.


# Graphs to compile, or sets of kernels. Padding of later epochs at 25,000 tokens a step in micro-batches of 4,096:
# multi30k 6.8 %, German news 10.8 %; at 4,096 tokens a step, uncut, 8.2 and 12.2 % (with free shapes 5.4 and 5.1 %).
MOST_SHAPES = 64
# Rows that a GPU's shapes have to spare, as a share: a micro-batch that no shape holds becomes two, which is twice the
# launches. Of 300,000 pairs with log-normal lengths, 4,096 tokens a batch, 10 % of later batches were cut without.
SPARE_ROWS = 0.02
SEEN = 4000  # micro-batches examined, over as many epochs as necessary …
EPOCHS = 20  # … but at most so many
START = 1500  # initial groups: joining them takes a second
TIGHTENED_FROM = 3  # shrink groups from 3 × the final number on: earlier it costs seconds and gains nothing
NEVER = np.iinfo(np.int64).max

Shape = tuple[int, int, int]
Triples = NDArray[np.int64]  # (n, 3): rows, source width, target width
Count = TypeVar("Count", int, NDArray[np.int64])


class Shapes:
    """The shapes of a plan, and the assignment of micro-batches to them.

    lengths: source and target pieces of every pair. shapes: of which one holds any single pair.
    """

    def __init__(self, lengths: tuple[Indices, Indices], shapes: Iterable[Shape]) -> None:
        self._source, self._target = lengths
        self.shapes = sorted(shapes, key=lambda shape: _places(*shape))

    @classmethod
    def fitted(
        cls,
        plan: BatchPlan,
        cut: Callable[[Indices], Iterable[Indices]],
        most: int = MOST_SHAPES,
        spare: float = 0.0,
    ) -> "Shapes":
        """At most `most` shapes, a pure function of the plan. cut(batch): its micro-batches, of all processes.

        spare: share of rows that are added to each shape, for later micro-batches.
        """
        source, target = plan.lengths
        widest = (1, int(source.max()), int(target.max()))  # any single pair fits
        triples = [_triple(part, source, target) for part in _seen(plan, cut)]
        groups = _fewer(np.array(triples), most - 1)
        shapes = {(math.ceil(rows * (1 + spare)), wide, long) for rows, wide, long in groups.tolist()}
        return cls(plan.lengths, {*shapes, widest})

    def fit(self, part: Indices) -> list[tuple[Indices, Shape]]:
        """The micro-batch with the smallest shape that holds it; cut in halves if none does."""
        rows, source, target = _triple(part, self._source, self._target)
        for shape in self.shapes:
            if rows <= shape[0] and source <= shape[1] and target <= shape[2]:
                return [(part, shape)]
        middle = len(part) // 2
        return [*self.fit(part[:middle]), *self.fit(part[middle:])]


def _seen(plan: BatchPlan, cut: Callable[[Indices], Iterable[Indices]]) -> Iterable[Indices]:
    seen = 0
    for epoch in range(EPOCHS):
        for batch in plan.epoch(epoch):
            for part in cut(batch):
                seen += 1
                yield part
            if seen >= SEEN and epoch:
                return


def _triple(part: Indices, source: Indices, target: Indices) -> Shape:
    return len(part), int(source[part].max(initial=1)), int(target[part].max(initial=1))


def _places(rows: Count, source: Count, target: Count) -> Count:
    """Number of places of a shape, or of each of many."""
    return rows * (source + target)


def _fewer(triples: Triples, most: int) -> Triples:
    """At most `most` triples with few places; each given triple fits into at least one."""
    groups = _joined(triples, TIGHTENED_FROM * most)
    triples, counts = np.unique(triples, axis=0, return_counts=True)
    while True:
        groups, taken = _tightened(groups, triples)
        if len(groups) <= most:
            return groups
        held = np.bincount(taken, counts).astype(np.int64)
        waste = np.stack([_waste(groups, held, one) for one in range(len(groups))])
        one, other = np.unravel_index(waste.argmin(), waste.shape)
        groups[one] = np.maximum(groups[one], groups[other])
        groups = np.delete(groups, other, axis=0)


def _tightened(groups: Triples, triples: Triples) -> tuple[Triples, NDArray[np.int64]]:
    """The groups shrunk to their members, and the cheapest group that holds each triple."""
    while True:
        holds = (triples[:, None] <= groups).all(-1)
        used, taken = np.unique(np.where(holds, _places(*groups.T), NEVER).argmin(1), return_inverse=True)
        smaller = np.array([triples[taken == group].max(0) for group in range(len(used))])
        if np.array_equal(smaller, groups):
            return groups, taken
        groups = smaller


def _joined(triples: Triples, most: int) -> Triples:
    """At most `most` triples; each given triple fits into at least one."""
    groups, counts = _coarse(triples)
    waste = np.stack([_waste(groups, counts, one) for one in range(len(groups))])
    left, least = np.ones(len(groups), bool), waste.min(1)
    for _ in range(len(groups) - most):
        one = int(least.argmin())
        other = int(waste[one].argmin())
        groups[one], counts[one] = np.maximum(groups[one], groups[other]), counts[one] + counts[other]
        left[other] = False
        touched = (least == waste[:, one]) | (least == waste[:, other])
        waste[one] = waste[:, one] = np.where(left, _waste(groups, counts, one), NEVER)
        waste[other] = waste[:, other] = NEVER
        least = np.minimum(least, waste[:, one])
        touched[one] = touched[other] = True
        least[touched] = waste[touched].min(1)
    return groups[left]


def _waste(groups: Triples, counts: NDArray[np.int64], one: int) -> NDArray[np.int64]:
    """Places that joining one group with each of the others would add, over all their micro-batches."""
    own, places = _places(*groups.T), _places(*np.maximum(groups, groups[one]).T)
    added: NDArray[np.int64] = counts * (places - own) + counts[one] * (places - own[one])
    added[one] = NEVER
    return added


def _coarse(triples: Triples) -> tuple[Triples, NDArray[np.int64]]:
    """Distinct triples and their counts; rows rounded up as far as necessary to have few."""
    step = 1
    while True:
        rounded = triples.copy()
        rounded[:, 0] = -(-triples[:, 0] // step) * step
        rounded[:, 1:] = -(-triples[:, 1:] // ((step + 3) // 4)) * ((step + 3) // 4)
        groups, counts = np.unique(rounded, axis=0, return_counts=True)
        if len(groups) <= START:
            return groups, counts
        step += 1
