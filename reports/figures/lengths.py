"""A score by the length of the sentences, from the counts kept of each: of the first column that has counts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.tasks.columns import Column
from reports.figures import panels, style
from reports.results.results import CountsOf, LengthsOf
from reports.results.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BINS = 5  # of equally many sentences
FEWEST = 20  # sentences of a bin


@contextmanager
def draw(
    table: Table, counts_of: CountsOf, lengths_of: LengthsOf, size: style.Size = style.PAPER
) -> Iterator["Figure | None"]:
    """One panel per group of rows; None where no column has counts or too few sentences were kept."""
    column = next((c for c in table.columns if c.counts is not None), None)
    lines = {row.key: made for row in table.rows if column and (made := _line(row, column, counts_of, lengths_of))}
    if column is None or not lines:
        yield None
        return

    def line(axes: Any, row: Row, look: Mapping[str, Any]) -> None:
        middles, scores, _ = lines[row.key]
        axes.plot(middles, scores, **look)
        texts = zip(middles, scores, strict=True)
        tips = [f"{row.key}\n{column.header} {y:.{column.digits}f}\n{x:.1f} words on average" for x, y in texts]
        style.marks_along(axes, list(middles), list(scores), tips, look["color"])

    side = "source" if all(of_source for *_, of_source in lines.values()) else "reference"
    score = style.label(column.header)
    score = f"{style.LOWER}   {score}" if column.better == "lower" else f"{score}   {style.HIGHER}"
    with panels.by_group(table, set(lines), line, f"words of the {side} sentence", score, size) as figure:
        yield figure


def _line(
    row: Row, column: Column, counts_of: CountsOf, lengths_of: LengthsOf
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool] | None:
    """Mean length and score per bin; seeds' counts are summed. Lengths are the source's where they were kept.

    None where there are too few sentences, or where nothing says how long they are.
    """
    found = [counts for o in row.outcomes if (counts := counts_of(o, column)) is not None]
    if column.counts is None or not found or len({len(counts) for counts in found}) > 1 or len(found[0]) < 2 * FEWEST:
        return None
    counts = np.sum(found, axis=0)
    kept = lengths_of(row.outcomes[0], column.set)
    of_source = kept is not None and len(kept) == len(counts)
    if kept is not None and of_source:
        lengths = kept
    elif column.counts.length:
        lengths = found[0][:, column.counts.names.index(column.counts.length)]
    else:
        return None
    order = np.argsort(lengths, kind="stable")
    parts = np.array_split(order, min(BINS, len(order) // FEWEST))
    middles = np.array([float(lengths[part].mean()) for part in parts])
    return middles, column.counts.of(np.stack([counts[part].sum(axis=0) for part in parts])), of_source
