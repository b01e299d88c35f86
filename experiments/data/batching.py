"""Assign sentence pairs to batches, as a pure function of (seed, step). Imports no torch.

"Sentence pairs were batched together by approximate sequence length. Each training batch contained a set of sentence
pairs containing approximately 25000 source tokens and 25000 target tokens" (section 5.1). Here a token is a word piece.
EOS counts as a token, padding does not. No batch has more than `tokens_per_batch` tokens on either side.

All random numbers are raw bits of PCG64 and all sorts are stable, so every version of numpy makes the same plan.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from experiments.errors import UserError

Indices = NDArray[np.int64]

# These values were measured on multi30k and German news (with vocabularies of 8,000 word pieces) and on the built-in
# corpus, with 4,096 tokens per batch. Padding is 5 to 7 %. The probability that two pairs of one batch are in the same
# batch again in the next epoch is about a third. With MIXING = 2.0, it is a quarter, and padding is 7 %.
BAND = 1.05  # lengths whose ratio is at most about 1.05 count as equal
# The order by length is shuffled locally. A pair moves by at most MIXING batches, measured in tokens.
MIXING = 1.25
MIXING_SHARE = 1 / 40  # a pair moves by at most this fraction of the epoch, so that large batches have little padding


class BatchPlan:
    """A plan of batches in which all pairs have a similar length.

    Every epoch contains every pair once. The batches and their order differ between epochs. Steps and epochs are
    counted from 0. The constructor raises UserError if a single pair exceeds `tokens_per_batch`.

    source_lengths, target_lengths: the number of pieces of every pair, including EOS.
    """

    def __init__(self, source_lengths: ArrayLike, target_lengths: ArrayLike, tokens_per_batch: int, seed: int) -> None:
        self._source = np.asarray(source_lengths, np.int64)
        self._target = np.asarray(target_lengths, np.int64)
        self._longest = np.maximum(self._source, self._target)
        self.tokens_per_batch = tokens_per_batch
        self.seed = seed
        self._starts = [0]  # the first step of every epoch planned so far, and of the next epoch
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
    """Return the bounds that cut a sequence of N pairs into batches. Each batch is as full as `cap` allows.

    source_sums, target_sums: (N+1,) cumulative lengths, which start with 0.
    """
    bounds = [0]
    while bounds[-1] < len(source_sums) - 1:
        start = bounds[-1]
        ends = (int(np.searchsorted(sums, sums[start] + cap, side="right")) - 1 for sums in (source_sums, target_sums))
        bounds.append(min(ends))
    return bounds


def _even_bounds(source: Indices, target: Indices, cap: int) -> list[int]:
    """Return the bounds of as many batches as `_bounds` gives, but with about equally full batches.

    With `_bounds`, the last batch could be small.
    """
    source_sums, target_sums = (np.concatenate([[0], np.cumsum(lengths)]) for lengths in (source, target))
    return _evened(lambda tried: _bounds(source_sums, target_sums, tried), int(max(source.max(), target.max())), cap)


def _evened(cut: Callable[[int], list[int]], low: int, cap: int) -> list[int]:
    """Return the result of `cut` for the smallest argument from `low` to `cap` that gives as few parts as `cap`."""
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
    """Cut pairs into micro-batches of at most `max_tokens` positions per side, including padding.

    There are as few micro-batches as possible. They are about equally full, and the pairs of each have similar lengths.
    A micro-batch has at least one pair, even if that pair is longer than `max_tokens`.
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
