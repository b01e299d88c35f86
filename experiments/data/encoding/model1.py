"""Which target pieces translate a source piece: IBM Model 1 (Brown et al. 1993, "The Mathematics of Statistical Machine
Translation", section 4.1) by expectation maximisation over a corpus's pairs, without the empty source word.

P(t | s) is first equal for all pairs of pieces that occur in one sentence pair. An iteration divides each target piece
of a sentence among the source pieces in proportion to P(t | s), then P(t | s) is s's share. Imports no torch.

Shapes: C cells (a source piece beside a target piece, in one sentence pair), U distinct ones, in the order of their
keys: source piece × size of the target vocabulary + target piece.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from experiments.data.encoding.pairs import EncodedPairs

ITERATIONS = 5
# Larger corpora are sampled at even distances, which bounds time and memory.
MOST_CELLS = 1 << 25
CELLS_AT_ONCE = 1 << 22


class _Part(NamedTuple):
    """Some sentence pairs. Each target piece has a run of cells, one per source piece of its sentence."""

    keys: NDArray[np.int64]  # the distinct ones
    places_C: NDArray[np.int32]  # of each cell's key, at first in `keys`, then among all
    begins: NDArray[np.int64]  # of the runs
    lengths: NDArray[np.int64]


class Lexicon(NamedTuple):
    """P(target piece | source piece), in the order of source, then target."""

    source_U: NDArray[np.int64]
    target_U: NDArray[np.int64]
    probability_U: NDArray[np.float64]

    def best(self, count: int, sources: int, fill: int) -> NDArray[np.int64]:
        """(sources, count): the most probable target pieces of each, best first; `fill` where there are fewer.

        Equal ones in the order of their numbers. Probabilities are rounded: sums of the same numbers in another order
        are equal then.
        """
        order = np.lexsort((self.target_U, -self.probability_U.round(9), self.source_U))
        firsts = np.searchsorted(self.source_U, np.arange(sources))
        ranks = np.arange(len(order)) - firsts[self.source_U]  # `order` keeps the sources where they are
        best = np.full((sources, count), fill, np.int64)
        inside = ranks < count
        best[self.source_U[inside], ranks[inside]] = self.target_U[order[inside]]
        return best


def learn(pairs: EncodedPairs, target_size: int) -> Lexicon:
    """The lexicon of a corpus: a function of its pairs alone."""
    found = list(_parts(pairs, target_size))
    keys = np.unique(np.concatenate([part.keys for part in found]))
    parts = [part._replace(places_C=np.searchsorted(keys, part.keys).astype(np.int32)[part.places_C]) for part in found]
    source_U, target_U = np.divmod(keys, target_size)
    probability_U = np.ones(len(keys))
    for _ in range(ITERATIONS):
        expected_U = np.zeros(len(keys))
        for part in parts:
            share_C = probability_U[part.places_C]
            share_C /= np.repeat(np.add.reduceat(share_C, part.begins), part.lengths)
            expected_U += np.bincount(part.places_C, share_C, len(keys))
        probability_U = expected_U / np.bincount(source_U, expected_U)[source_U]
    return Lexicon(source_U, target_U, probability_U)


def _parts(pairs: EncodedPairs, target_size: int) -> Iterator[_Part]:
    rows = _sampled(pairs)
    cells = np.cumsum(_cells(pairs)[rows])
    for chosen in np.split(rows, np.searchsorted(cells, np.arange(CELLS_AT_ONCE, cells[-1], CELLS_AT_ONCE))):
        if not len(chosen):
            continue
        keys_C, lengths = [], []
        for row in chosen:
            source, target = pairs[row]
            keys_C.append((source * target_size + target[:, None]).ravel())
            lengths.append(np.full(len(target), len(source)))
        keys, places_C = np.unique(np.concatenate(keys_C), return_inverse=True)
        each = np.concatenate(lengths)
        yield _Part(keys, places_C.astype(np.int32), np.cumsum(each) - each, each)


def _sampled(pairs: EncodedPairs) -> NDArray[np.int64]:
    """All pairs with pieces on both sides, or about as many at even distances as have MOST_CELLS."""
    cells = _cells(pairs)
    rows, total = np.flatnonzero(cells), int(cells.sum())
    count = len(rows) if total <= MOST_CELLS else max(1, len(rows) * MOST_CELLS // total)
    return rows[np.arange(count) * len(rows) // count]


def _cells(pairs: EncodedPairs) -> NDArray[Any]:
    return (pairs.source_lengths - 1) * (pairs.target_lengths - 1)  # EOS is counted in lengths
