"""Few shapes for many batches: the shapes to which micro-batches are padded. Imports no torch.

A compiled step has a graph per shape; a processor's bf16 products have kernels per shape, which oneDNN builds at the
first use. On an Intel Xeon with AMX, a training on free shapes spent 37 % of its time building them.

A shape is (B sentences, S source, T target). Micro-batches of the first epochs are grouped; a group is as large as the
largest of its members. Groups whose union costs least are joined until few are left. Towards the end, after every
joining, each micro-batch moves to the cheapest group that holds it, and groups shrink to their members.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from experiments.data.batches.batching import BatchPlan, Indices

# Graphs to compile, or sets of kernels. Padding of later epochs at 25,000 tokens a step in micro-batches of 4,096:
# multi30k 6.8 %, German news 10.8 %; at 4,096 tokens a step, uncut, 8.2 and 12.2 % (with free shapes 5.4 and 5.1 %).
MOST_SHAPES = 64
SEEN = 4000  # micro-batches examined, over as many epochs as necessary …
EPOCHS = 20  # … but at most so many
START = 1500  # initial groups: joining them takes a second
TIGHTENED_FROM = 3  # shrink groups from 3 × the final number on: earlier it costs seconds and gains nothing
NEVER = np.iinfo(np.int64).max

Shape = tuple[int, int, int]
Triples = NDArray[np.int64]  # (n, 3): rows, source width, target width
Count = TypeVar("Count", int, NDArray[np.int64])


class Shapes:
    """The shapes of a plan, a pure function of it, and the assignment of micro-batches to them.

    cut(batch): the micro-batches of a batch, of all processes and lanes.
    """

    def __init__(self, plan: BatchPlan, cut: Callable[[Indices], Iterable[Indices]], most: int = MOST_SHAPES) -> None:
        self._source, self._target = plan.lengths
        widest = (1, int(self._source.max()), int(self._target.max()))  # any single pair fits
        found = [_triple(part, self._source, self._target) for part in _seen(plan, cut)]
        groups = _fewer(np.array(found), most - 1)
        self.shapes: list[Shape] = sorted({*map(_as_shape, groups), widest}, key=lambda shape: _places(*shape))

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


def _as_shape(triple: NDArray[np.int64]) -> Shape:
    rows, source, target = (int(value) for value in triple)
    return rows, source, target


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
        found, taken = np.unique(np.where(holds, _places(*groups.T), NEVER).argmin(1), return_inverse=True)
        smaller = np.array([triples[taken == group].max(0) for group in range(len(found))])
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
