"""A small set of shapes to which micro-batches are padded.

A compiled step needs one graph per shape. On a CPU, oneDNN builds the kernels of bf16 matrix products once per shape,
at the first use. On an Intel Xeon with AMX, training without fixed shapes spent 37 % of its time building kernels.

A shape is (B sentences, S source, T target). The algorithm puts micro-batches of the first epochs into groups. The
shape of a group is large enough for all its members. The algorithm repeatedly joins the two groups whose union adds
the fewest positions. When few groups are left, two things happen after every join: each micro-batch moves to the
smallest group into which it fits, and each group shrinks to its members.
"""

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.data.batching import BatchPlan, Indices

# Maximum number of shapes. Each shape needs a compiled graph or a set of kernels. With 25,000 tokens per step in
# micro-batches of 4,096, padding in later epochs is 6.8 % for multi30k and 10.8 % for German news. With 4,096 tokens
# per step in one micro-batch, padding is 8.2 % and 12.2 %. Without fixed shapes, it is 5.4 % and 5.1 %.
MOST_SHAPES = 64
# The share of rows by which the shapes of a GPU are enlarged. A micro-batch that fits no shape is cut in two, which
# doubles its kernel launches. Without spare rows, 10 % of later batches were cut (300,000 pairs with log-normal
# lengths, 4,096 tokens per batch).
SPARE_ROWS = 0.02
SEEN = 4000  # number of micro-batches to examine; they come from at least two epochs
EPOCHS = 20  # maximum number of epochs to examine
START = 1500  # maximum number of initial groups; joining them takes a second
TIGHTENED_FROM = 3  # groups shrink only when at most 3 × the final number are left; shrinking them earlier is slower
NEVER = np.iinfo(np.int64).max

Shape = tuple[int, int, int]
Triples = NDArray[np.int64]  # (n, 3): number of rows, source width, target width
Count = TypeVar("Count", int, NDArray[np.int64])


class Shapes:
    """The shapes of a plan, and the assignment of micro-batches to shapes.

    lengths: the number of source pieces and of target pieces of every pair.
    shapes: the shapes; every single pair must fit into one of them.
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

        cut: function that returns the micro-batches of a batch, for all processes.
        spare: the share of rows to add to each shape, so that later micro-batches fit.
        """
        source, target = plan.lengths
        widest = (1, int(source.max()), int(target.max()))  # every single pair fits
        triples = [_triple(part, source, target) for part in _seen(plan, cut)]
        groups = _fewer(np.array(triples), most - 1)
        shapes = {(math.ceil(rows * (1 + spare)), wide, long) for rows, wide, long in groups.tolist()}
        return cls(plan.lengths, {*shapes, widest})

    def fit(self, part: Indices) -> list[tuple[Indices, Shape]]:
        """Return a micro-batch with the smallest shape into which it fits.

        If it fits into no shape, cut it in halves until they fit, and return all of them.
        """
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
    """Shrink the groups to their members. Return the groups, and for each triple the index of its smallest group."""
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
    """Return, for each other group, how many positions a union with group `one` would add in all micro-batches."""
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
