"""Few shapes for many batches: what a compiled step pads its micro-batches to. Imports no torch.

A shape is (B sentences, S source, T target). Micro-batches of the first epochs are put into groups, each as large as
the largest of its members; groups whose union costs least are joined until few are left.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from experiments.data.batching import BatchPlan, Indices, deal, split

# Graphs to compile. Padding at 25,000 tokens a step in micro-batches of 4,096: multi30k 8.7 %, German news 11 %; with
# free shapes 5.7 and 6.2 %.
MOST_SHAPES = 64
SEEN = 4000  # micro-batches that are looked at, over as many epochs as they take …
EPOCHS = 20  # … but no more than these
START = 1500  # groups to begin with: joining them takes a second
NEVER = np.iinfo(np.int64).max

Shape = tuple[int, int, int]
Triples = NDArray[np.int64]  # (n, 3): rows, source width, target width


class Shapes:
    """The shapes of a plan, a pure function of it, and which of them a micro-batch takes.

    `share` is what this process takes of each batch; `max_tokens` the micro-batch's places a side.
    """

    def __init__(
        self, plan: BatchPlan, max_tokens: int, most: int = MOST_SHAPES, share: tuple[int, int] = (0, 1)
    ) -> None:
        self._source, self._target = plan.lengths
        widest = (1, int(self._source.max()), int(self._target.max()))  # whatever comes, a pair alone has a place
        found = [_triple(part, self._source, self._target) for part in _parts(plan, max_tokens, share)]
        groups = _joined(np.array(found), most - 1)
        self.shapes: list[Shape] = sorted({*map(_as_shape, groups), widest}, key=_places)

    def fit(self, part: Indices) -> list[tuple[Indices, Shape]]:
        """The micro-batch with the smallest shape that holds it; in halves where none does."""
        rows, source, target = _triple(part, self._source, self._target)
        for shape in self.shapes:
            if rows <= shape[0] and source <= shape[1] and target <= shape[2]:
                return [(part, shape)]
        middle = len(part) // 2
        return [*self.fit(part[:middle]), *self.fit(part[middle:])]


def _parts(plan: BatchPlan, max_tokens: int, share: tuple[int, int]) -> Iterable[Indices]:
    seen = 0
    for epoch in range(EPOCHS):
        for batch in plan.epoch(epoch):
            parts = split(*plan.lengths, deal(*plan.lengths, batch, share), max_tokens)
            seen += len(parts)
            yield from parts
            if seen >= SEEN and epoch:
                return


def _triple(part: Indices, source: Indices, target: Indices) -> Shape:
    return len(part), int(source[part].max(initial=1)), int(target[part].max(initial=1))


def _as_shape(triple: NDArray[np.int64]) -> Shape:
    rows, source, target = (int(value) for value in triple)
    return rows, source, target


def _places(shape: Shape) -> int:
    rows, source, target = shape
    return rows * (source + target)


def _joined(triples: Triples, most: int) -> Triples:
    """At most `most` triples of which each given one is below at least one."""
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
    union, own = np.maximum(groups, groups[one]), groups[:, 0] * (groups[:, 1] + groups[:, 2])
    places = union[:, 0] * (union[:, 1] + union[:, 2])
    added: NDArray[np.int64] = counts * (places - own) + counts[one] * (places - own[one])
    added[one] = NEVER
    return added


def _coarse(triples: Triples) -> tuple[Triples, NDArray[np.int64]]:
    """Distinct triples and how often each comes; rows rounded up as far as it takes to have few."""
    step = 1
    while True:
        rounded = triples.copy()
        rounded[:, 0] = -(-triples[:, 0] // step) * step
        rounded[:, 1:] = -(-triples[:, 1:] // ((step + 3) // 4)) * ((step + 3) // 4)
        groups, counts = np.unique(rounded, axis=0, return_counts=True)
        if len(groups) <= START:
            return groups, counts
        step += 1
