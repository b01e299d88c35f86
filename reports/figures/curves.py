"""Line figures: learning curves and scores by sentence length, with one panel per group of rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.events.history import History
from experiments.store.layout import Store
from experiments.tasks.columns import Column
from reports.figures import style
from reports.render.cells import group_name
from reports.results.evaluation_readers import CountsOf, LengthsOf
from reports.results.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_POINTS = 200  # maximum number of points of a line
Curves = dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]  # key of a row → (steps, means over seeds)


@dataclass(frozen=True)
class Logged:
    """A metric that a training logs, and the column that prints this metric."""

    name: str  # name in the events
    words: str  # name for the reader of the figure
    column: Column


def logged(columns: Sequence[Column]) -> list[Logged]:
    """Return the logged metrics that can be drawn, preferred metrics first.

    Metrics of sets that are scored during training (`dev_perplexity`) come before metrics of the training itself.
    """
    on_sets = [Logged(f"{column.set}_{column.metric}", f"{column.set} {column.metric}", column) for column in columns]
    by_metric = {column.metric: column for column in reversed(columns)}  # a metric of several sets counts once
    return on_sets + [
        Logged(column.metric, f"{column.metric} while training", column) for column in reversed(by_metric.values())
    ]


def read(table: Table, store: Store) -> tuple[Curves, Logged | None]:
    """Return the curve of each row, and the drawn metric: the first metric of `logged` for which a row has values."""
    points = {row.key: [_points(store, outcome.run.run_id) for outcome in row.outcomes] for row in table.rows}
    for shown in logged(table.listed):
        name, log = shown.name, shown.column.logarithmic
        curves = {key: _mean([seed[name] for seed in seeds if name in seed], log) for key, seeds in points.items()}
        found = {key: curve for key, curve in curves.items() if curve is not None}
        if found:
            return found, shown
    return {}, None


def _points(store: Store, run_id: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for point in History(store, run_id).read():
        found.setdefault(point.name, {})[point.step] = point.value
    return found


def _mean(seeds: list[dict[int, float]], log: bool) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """Return the mean over seeds at the steps that all seeds logged. log: whether to return the geometric mean."""
    steps = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
    steps = [step for step in steps if not log or all(seed[step] > 0 for seed in seeds)]
    if not steps:
        return None
    places = np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).round()  # include the first and the last step
    kept = [steps[int(i)] for i in places]
    values = np.array([[seed[step] for step in kept] for seed in seeds])
    return np.array(kept), np.exp(np.log(values).mean(axis=0)) if log else values.mean(axis=0)


@contextmanager
def draw_curves(table: Table, store: Store, size: style.Size = style.PAPER) -> Iterator["Figure | None"]:
    """Draw learning curves, with one panel per group of rows. Yield None if no run logged a metric of the table."""
    curves, shown = read(table, store)
    if shown is None:
        yield None
        return

    def line(axes: Any, row: Row, look: Mapping[str, Any]) -> None:
        steps, values = curves[row.key]
        axes.plot(steps, values, **{**look, "marker": "None"})
        if shown.column.logarithmic:
            axes.set_yscale("log")

    with by_group(table, set(curves), line, "steps", style.toward(shown.words, shown.column), size) as figure:
        if shown.column.logarithmic:
            style.logarithmic(figure.axes[0].yaxis)  # all panels share this axis
        yield figure


BINS = 5  # maximum number of bins; all bins have about the same number of sentences
FEWEST = 20  # minimum number of sentences in a bin


@contextmanager
def draw_lengths(
    table: Table, counts_of: CountsOf, lengths_of: LengthsOf, size: style.Size = style.PAPER
) -> Iterator["Figure | None"]:
    """Draw scores by sentence length, with one panel per group of rows.

    Yield None if no column has counts, or if no row has counts of enough sentences.
    """
    column = next((c for c in table.columns if c.counts is not None), None)
    lines = {row.key: made for row in table.rows if column and (made := _line(row, column, counts_of, lengths_of))}
    if column is None or not lines:
        yield None
        return

    def line(axes: Any, row: Row, look: Mapping[str, Any]) -> None:
        middles, scores, _ = lines[row.key]
        axes.plot(middles, scores, **look)

    side = "source" if all(of_source for *_, of_source in lines.values()) else "reference"
    score = style.toward(style.label(column.header), column)
    with by_group(table, set(lines), line, f"words of the {side} sentence", score, size) as figure:
        yield figure


def _line(
    row: Row, column: Column, counts_of: CountsOf, lengths_of: LengthsOf
) -> tuple[NDArray[np.float64], NDArray[np.float64], bool] | None:
    """Return the mean length and the score of each bin, and whether the lengths are lengths of source sentences.

    Counts are summed over seeds. If lengths of source sentences are not stored, lengths of references are used. Return
    None if there are too few sentences, or if their lengths are unknown.
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


MOST_PANELS, MOST_LINES = 12, 12  # maximum number of panels, and of rows per panel

Draw = Callable[[Any, Row, Mapping[str, Any]], None]  # function of axes, row and matplotlib's style of the row's line


@contextmanager
def by_group(table: Table, drawable: set[str], draw: Draw, x: str, y: str, size: style.Size) -> Iterator["Figure"]:
    """Draw every row whose key is in `drawable` in the panel of its group. x, y: labels of the figure's axes."""
    groups = list(_groups(table, drawable).items())[:MOST_PANELS]
    columns = min(size.groups, len(groups))
    rows = -(-len(groups) // columns)
    with style.canvas(size, rows, columns, sharex=True, sharey=True) as (figure, axes):
        panels = [panel for line in axes for panel in line]
        for panel, (group, members) in zip(panels, groups, strict=False):
            panel.set_title(style.label(group))
            panel.grid(True)
            looks = style.colours([row.key for row in members])
            for row in members[:MOST_LINES]:
                colour, marker = looks[row.key]
                draw(panel, row, {"color": colour, "marker": marker, "label": style.label(row.key)})
            if table.base_row is not None and table.base_row.key in drawable:
                draw(panel, table.base_row, {"color": style.BASE, "marker": "None", "label": "base", "zorder": 3})
            if len(members) > MOST_LINES:
                panel.plot([], [], " ", label=f"and {len(members) - MOST_LINES} more")
            panel.legend(
                handlelength=1.6, borderaxespad=0.4, labelspacing=0.25, loc="upper left", bbox_to_anchor=(1, 1)
            )
        for place, panel in enumerate(panels):
            if place >= len(groups):
                panel.set_axis_off()
            elif place + columns >= len(groups):  # the lowest panel of a column prints the numbers of the shared axis
                panel.tick_params(labelbottom=True)
        figure.supxlabel(x, fontsize=size.font)
        figure.supylabel(y, fontsize=size.font)
        yield figure


def _groups(table: Table, drawable: set[str]) -> dict[str, list[Row]]:
    """Return the rows by group, without base. Rows without a group share one panel."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.key in drawable and row.key != table.base:
            own = row.group if row.group and row.group != row.key else ""
            groups.setdefault(group_name(own) if own else "others", []).append(row)
    return groups or {"": []}
