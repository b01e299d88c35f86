"""Assign sentence pairs to batches, as a pure function of (seed, step), and pad them to arrays. Imports no torch.

"Sentence pairs were batched together by approximate sequence length. Each training batch contained a set of sentence
pairs containing approximately 25000 source tokens and 25000 target tokens" (section 5.1). Here a token is a piece of
the tokenizer. EOS counts as a token, padding does not. No batch has more than `tokens_per_batch` tokens on either side.

All random numbers are raw bits of PCG64 and all sorts are stable, so every version of numpy makes the same plan.
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

# Measured on multi30k (V 8,000), German news (V 8,000) and the built-in corpus, with 4,096 tokens per batch: padding is
# 5 to 7 %. Two pairs of one batch are in one batch again in the next epoch in about a third of the cases. With
# MIXING = 2.0, they are in a quarter of the cases, and padding is 7 %.
BAND = 1.05  # lengths within 5 % count as equal
# The order by length is shuffled locally: a pair moves by at most MIXING batches, measured in tokens.
MIXING = 1.25
MIXING_SHARE = 1 / 40  # a pair moves by at most this fraction of the epoch, so that large batches have little padding


class BatchPlan:
    """A plan of batches in which all pairs have a similar length.

    Every epoch has every pair once. The batches and their order differ between epochs. Steps and epochs count from 0.
    source_lengths, target_lengths: the number of pieces of every pair, EOS counted.
    Raises UserError if a single pair exceeds `tokens_per_batch`.
    """

    def __init__(self, source_lengths: ArrayLike, target_lengths: ArrayLike, tokens_per_batch: int, seed: int) -> None:
        self._source = np.asarray(source_lengths, np.int64)
        self._target = np.asarray(target_lengths, np.int64)
        self._longest = np.maximum(self._source, self._target)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self._starts = [0]  # the first step of every epoch planned so far, and of the epoch after them
        self._cached: tuple[int, list[Indices]] = (-1, [])
        self._check()

    @property
    def lengths(self) -> tuple[Indices, Indices]:
        """The number of source pieces and of target pieces of every pair."""
        return self._source, self._target

    def batch(self, step: int) -> Indices:
        """Return the indices of the pairs of update number `step`."""
        epoch, index = self.locate(step)
        return self.epoch(epoch)[index]

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch of a step and the number of its batch within the epoch."""
        while self._starts[-1] <= step:
            self._starts.append(self._starts[-1] + len(self.epoch(len(self._starts) - 1)))
        epoch = int(np.searchsorted(self._starts, step, side="right")) - 1
        return epoch, step - self._starts[epoch]

    def seen(self, steps: int) -> Indices:
        """Return how often the first `steps` updates use each pair."""
        epoch, index = self.locate(steps)
        counts = np.full(len(self._longest), epoch)
        for batch in self.epoch(epoch)[:index]:
            counts[batch] += 1
        return counts

    def epoch(self, epoch: int) -> list[Indices]:
        """Return all batches of an epoch, in the order of its steps. The epoch requested last is cached."""
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
        """Sort pairs by bands of the longer side, and within a band by the difference between the two sides.

        The difference rises in one band and falls in the next. Ties are broken at random.
        """
        shift = int(bits.random_raw()) / 2**64  # the bands begin at other lengths in every epoch
        band = np.floor(np.log(self._longest) / np.log(BAND) + shift).astype(np.int64)
        difference = np.clip(self._source - self._target, -(2**19), 2**19 - 1)
        snake = np.where(band % 2, difference, ~difference) + 2**19
        chance = (bits.random_raw(len(band)) >> np.uint64(31)).astype(np.int64)
        # Sorting by one combined key takes a fifth of the time of np.lexsort.
        return np.argsort((band << 53) | (snake << 33) | chance, kind="stable")

    def _mixed(self, order: Indices, bits: np.random.PCG64) -> Indices:
        """Shuffle the order locally, so that epochs differ even if few pairs have equal lengths."""
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
    """Return the bounds that cut a sequence of N pairs into batches, each as full as `cap` allows.

    source_sums, target_sums: (N+1,) cumulative lengths, which start with 0.
    """
    bounds = [0]
    while bounds[-1] < len(source_sums) - 1:
        start = bounds[-1]
        ends = (int(np.searchsorted(sums, sums[start] + cap, side="right")) - 1 for sums in (source_sums, target_sums))
        bounds.append(min(ends))
    return bounds


def _even_bounds(source: Indices, target: Indices, cap: int) -> list[int]:
    """Return bounds of as few batches as `_bounds` gives, but evenly full: the last batch is not small."""
    source_sums, target_sums = (np.concatenate([[0], np.cumsum(lengths)]) for lengths in (source, target))
    return _evened(lambda tried: _bounds(source_sums, target_sums, tried), int(max(source.max(), target.max())), cap)


def _evened(cut: Callable[[int], list[int]], low: int, cap: int) -> list[int]:
    """Return the result of `cut` for the smallest value from `low` to `cap` that gives as few parts as `cap`."""
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
    """Divide pairs into `share[1]` parts with similar lengths and return part number `share[0]`, which may be empty."""
    rank, parts = share
    if parts == 1:
        return indices
    longest = np.maximum(np.asarray(source_lengths)[indices], np.asarray(target_lengths)[indices])
    return indices[np.argsort(longest, kind="stable")][rank::parts]


def split(source_lengths: ArrayLike, target_lengths: ArrayLike, indices: Indices, max_tokens: int) -> list[Indices]:
    """Cut pairs into micro-batches of at most `max_tokens` positions per side, padding counted.

    There are as few micro-batches as possible. They are about equally full, and the pairs of each have similar lengths.
    A micro-batch has at least one pair, also if that pair is longer than `max_tokens`.
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
# Rows are padded with PAD. A mask is true where an array differs from PAD.


Array = TypeVar("Array")
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Batch(Generic[Array]):
    """The sentence pairs of one batch or micro-batch. `Array` is a numpy array here and a torch tensor in training."""

    source: Array  # (B, S) int64: pieces EOS PAD…
    target_input: Array  # (B, T) int64: BOS pieces PAD…, the input of the decoder
    target_output: Array  # (B, T) int64: pieces EOS PAD…, the labels
    num_source_tokens: int  # EOS counted, padding not
    num_target_tokens: int
    # (N,) int64: indices of the labels that are not padding, in the flattened target_output. If the loss has a fixed
    # number of rows, indices of padding follow. None if the indices are not computed in advance.
    real: Array | None = None


def collate(pairs: Sides, indices: Ids, shape: tuple[int, int, int] | None = None) -> Batch[Ids]:
    """Make a batch from pairs. It is as small as possible, or padded to the given shape (B, S, T).

    Without pairs, the batch is one row of PAD: a process that has no pairs of a batch still takes part in the step.
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


# --- A small set of shapes to which micro-batches are padded
# A compiled step needs one graph per shape. On a CPU, oneDNN builds the kernels of bf16 matrix products once per shape,
# at the first use. On an Intel Xeon with AMX, training without fixed shapes spent 37 % of its time building kernels.
# A shape is (B sentences, S source, T target). The algorithm puts micro-batches of the first epochs into groups. The
# shape of a group is large enough for all its members. The algorithm repeatedly joins the two groups whose union adds
# the fewest positions. When few groups are left, two things happen after every join: each micro-batch moves to the
# smallest group into which it fits, and each group shrinks to its members.


# The number of graphs to compile, or of sets of kernels. Padding in later epochs, with 25,000 tokens per step in
# micro-batches of 4,096, is 6.8 % for multi30k and 10.8 % for German news. With 4,096 tokens per step in one
# micro-batch, it is 8.2 % and 12.2 %; without fixed shapes, 5.4 % and 5.1 %.
MOST_SHAPES = 64
# The share of rows by which the shapes of a GPU are enlarged. A micro-batch that fits no shape is cut in two, which
# doubles its kernel launches. Without spare rows, 10 % of later batches were cut (300,000 pairs with log-normal
# lengths, 4,096 tokens per batch).
SPARE_ROWS = 0.02
SEEN = 4000  # micro-batches to examine, from two epochs or more
EPOCHS = 20  # maximum number of epochs to examine
START = 1500  # maximum number of initial groups; joining them takes a second
TIGHTENED_FROM = 3  # shrink groups from 3 × the final number on; starting earlier takes seconds and gains nothing
NEVER = np.iinfo(np.int64).max

Shape = tuple[int, int, int]
Triples = NDArray[np.int64]  # (n, 3): number of rows, source width, target width
Count = TypeVar("Count", int, NDArray[np.int64])


class Shapes:
    """The shapes of a plan, and the assignment of micro-batches to shapes.

    lengths: the number of source and target pieces of every pair. shapes: every single pair must fit into one of them.
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
        """Return at most `most` shapes for the micro-batches of a plan. The result depends only on the arguments.

        cut: returns the micro-batches of a batch, for all processes. spare: the share of rows to add to each shape, so
        that later micro-batches fit.
        """
        source, target = plan.lengths
        widest = (1, int(source.max()), int(target.max()))  # every single pair fits
        triples = [_triple(part, source, target) for part in _seen(plan, cut)]
        groups = _fewer(np.array(triples), most - 1)
        shapes = {(math.ceil(rows * (1 + spare)), wide, long) for rows, wide, long in groups.tolist()}
        return cls(plan.lengths, {*shapes, widest})

    def fit(self, part: Indices) -> list[tuple[Indices, Shape]]:
        """Return a micro-batch with the smallest shape into which it fits. If it fits no shape, cut it in halves."""
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
    """Return the number of array positions of a shape, or of each of several shapes."""
    return rows * (source + target)


def _fewer(triples: Triples, most: int) -> Triples:
    """Return at most `most` triples with few positions, such that each given triple fits into at least one of them."""
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
    """Shrink the groups to their members. Return them, and for each triple the smallest group into which it fits."""
    while True:
        holds = (triples[:, None] <= groups).all(-1)
        used, taken = np.unique(np.where(holds, _places(*groups.T), NEVER).argmin(1), return_inverse=True)
        smaller = np.array([triples[taken == group].max(0) for group in range(len(used))])
        if np.array_equal(smaller, groups):
            return groups, taken
        groups = smaller


def _joined(triples: Triples, most: int) -> Triples:
    """Return at most `most` triples such that each given triple fits into at least one of them."""
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
    """Return how many positions joining group `one` with each other group would add, over all their micro-batches."""
    own, places = _places(*groups.T), _places(*np.maximum(groups, groups[one]).T)
    added: NDArray[np.int64] = counts * (places - own) + counts[one] * (places - own[one])
    added[one] = NEVER
    return added


def _coarse(triples: Triples) -> tuple[Triples, NDArray[np.int64]]:
    """Return distinct triples and their counts. Sizes are rounded up until at most START triples are distinct."""
    step = 1
    while True:
        rounded = triples.copy()
        rounded[:, 0] = -(-triples[:, 0] // step) * step
        rounded[:, 1:] = -(-triples[:, 1:] // ((step + 3) // 4)) * ((step + 3) // 4)
        groups, counts = np.unique(rounded, axis=0, return_counts=True)
        if len(groups) <= START:
            return groups, counts
        step += 1
