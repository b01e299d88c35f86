"""BLEU by the length of what is translated, from the stored counts."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.tasks.base import Column
from reports.figures import panels, style
from reports.results.bleu import bleu
from reports.results.results import Outcome
from reports.results.table import Row, Table
from reports.statistics.significance import COUNTED, CountsOf

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 5  # of equally many sentences
FEWEST = 20  # sentences of a bin
LengthsOf = Callable[[Outcome, str], NDArray[Any] | None]  # words of each source sentence
REFERENCE_LENGTH = 1  # column of the counts


@contextmanager
def draw(table: Table, counts_of: CountsOf, lengths_of: LengthsOf) -> Iterator["Figure | None"]:
    column = next((c for c in table.columns if c.metric in COUNTED), None)
    lines = {row.key: made for row in table.rows if column and (made := _line(row, column, counts_of, lengths_of))}
    if column is None or not lines:
        yield None
        return

    def line(axes: Any, row: Row, look: Mapping[str, Any]) -> None:
        middles, scores, _ = lines[row.key]
        axes.plot(middles, scores, **look)

    side = "source" if all(of_source for *_, of_source in lines.values()) else "reference"
    score = style.label(column.header)
    with panels.by_group(table, set(lines), line, f"words of the {side} sentence", score) as figure:
        yield figure


def _line(
    row: Row, column: Column, counts_of: CountsOf, lengths_of: LengthsOf
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool] | None:
    """Mean length and BLEU per bin; seeds' counts are summed. Lengths are the source's where they were kept."""
    found = [counts for o in row.outcomes if (counts := counts_of(o, column.set)) is not None]
    if not found or len({len(counts) for counts in found}) > 1 or len(found[0]) < 2 * FEWEST:
        return None
    counts = np.sum(found, axis=0)
    kept = lengths_of(row.outcomes[0], column.set)
    of_source = kept is not None and len(kept) == len(counts)
    lengths = kept if kept is not None and of_source else found[0][:, REFERENCE_LENGTH]
    order = np.argsort(lengths, kind="stable")
    parts = np.array_split(order, min(BINS, len(order) // FEWEST))
    middles = np.array([float(lengths[part].mean()) for part in parts])
    return middles, bleu(np.stack([counts[part].sum(axis=0) for part in parts])), of_source
