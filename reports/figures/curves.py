"""Learning curves: a metric of the table over training steps, from the runs' events."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.events.history import History
from experiments.store.layout import Store
from experiments.tasks.columns import Column
from reports.figures import panels, style
from reports.results.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 200  # of a line
MOST_TIPS = 12  # points of a line that tell their values
Curves = dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]  # row → steps, means over seeds


@dataclass(frozen=True)
class Logged:
    """A column's metric as a training logs it."""

    name: str  # in the events
    words: str
    column: Column


def logged(columns: Sequence[Column]) -> list[Logged]:
    """What may be drawn, best first: a set scored on the way (`dev_perplexity`), else the metric of training itself."""
    on_sets = [Logged(f"{column.set}_{column.metric}", f"{column.set} {column.metric}", column) for column in columns]
    return on_sets + while_training(columns)


def while_training(columns: Sequence[Column]) -> list[Logged]:
    """Each column's metric over the batches that a run trains on, if it logs that; a metric of several sets once."""
    by_metric = {column.metric: column for column in reversed(columns)}
    return [Logged(column.metric, f"{column.metric} while training", column) for column in reversed(by_metric.values())]


def read(table: Table, store: Store) -> tuple[Curves, Logged | None]:
    """One line per row with a curve, and its quantity: the first of `logged` that any row has."""
    points = {row.key: [_points(store, outcome.run.run_id) for outcome in row.outcomes] for row in table.rows}
    for shown in logged(table.columns):
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
    """The mean over seeds at the steps that all of them have; the geometric mean of what compares by logarithms."""
    steps = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
    steps = [step for step in steps if not log or all(seed[step] > 0 for seed in seeds)]
    if not steps:
        return None
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).round().astype(int))
    kept = [steps[i] for i in chosen]
    values = np.array([[seed[step] for step in kept] for seed in seeds])
    return np.array(kept), np.exp(np.log(values).mean(axis=0)) if log else values.mean(axis=0)


def _better(shown: Logged) -> str:
    return f"{style.LOWER}   {shown.words}" if shown.column.better == "lower" else f"{shown.words}   {style.HIGHER}"


@contextmanager
def draw(table: Table, store: Store, size: style.Size = style.PAPER) -> Iterator["Figure | None"]:
    """One panel per group of rows; None where no run logged a metric of the table."""
    curves, shown = read(table, store)
    if shown is None:
        yield None
        return

    def line(axes: Any, row: Row, look: Mapping[str, Any]) -> None:
        steps, values = curves[row.key]
        axes.plot(steps, values, **{**look, "marker": "None"})
        at = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_TIPS)).round().astype(int))
        tips = [f"{row.key}\n{shown.words} {values[i]:.4g}\nstep {steps[i]:,}" for i in at]
        style.marks_along(axes, steps[at], values[at], tips, look["color"])
        if shown.column.logarithmic:
            axes.set_yscale("log")

    with panels.by_group(table, set(curves), line, "steps", _better(shown), size) as figure:
        if shown.column.logarithmic:
            style.logarithmic(figure.axes[0].yaxis)  # the panels share it
        yield figure
