"""Learning curves: perplexity over steps, from the runs' events."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.events.history import History
from experiments.store.layout import Store
from reports.figures import panels, style
from reports.results.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_POINTS = 200  # of a line
Curves = dict[str, tuple[NDArray[np.int64], NDArray[np.float64]]]  # row → steps, means over seeds


def read(table: Table, store: Store) -> tuple[Curves, str]:
    """A line for each row that has one, and what it shows: dev where it was measured on the way, else training."""
    points = {row.key: [_points(store, outcome.run.run_id) for outcome in row.outcomes] for row in table.rows}
    for name, words in (("dev_perplexity", "dev perplexity"), ("perplexity", "perplexity of training batches")):
        curves = {key: _mean([seed[name] for seed in seeds if name in seed]) for key, seeds in points.items()}
        found = {key: curve for key, curve in curves.items() if curve is not None}
        if found:
            return found, words
    return {}, ""


def _points(store: Store, run_id: str) -> dict[str, dict[int, float]]:
    found: dict[str, dict[int, float]] = {}
    for point in History(store, run_id).read():
        found.setdefault(point.name, {})[point.step] = point.value
    return found


def _mean(seeds: list[dict[int, float]]) -> tuple[NDArray[np.int64], NDArray[np.float64]] | None:
    """The geometric mean over seeds, at the steps that all of them have: perplexities compare by their logarithms."""
    steps = sorted(set.intersection(*(set(seed) for seed in seeds))) if seeds else []
    steps = [step for step in steps if all(seed[step] > 0 for seed in seeds)]
    if not steps:
        return None
    chosen = np.unique(np.linspace(0, len(steps) - 1, min(len(steps), MOST_POINTS)).round().astype(int))
    kept = [steps[i] for i in chosen]
    means = np.exp(np.log([[seed[step] for step in kept] for seed in seeds]).mean(axis=0))
    return np.array(kept), means


@contextmanager
def draw(table: Table, store: Store) -> Iterator["Figure | None"]:
    curves, words = read(table, store)
    if not curves:
        yield None
        return

    def line(axes: Any, row: Row, look: Mapping[str, Any]) -> None:
        steps, values = curves[row.key]
        axes.plot(steps, values, **{**look, "marker": "None"})
        axes.set_yscale("log")

    with panels.by_group(table, set(curves), line, "steps", words) as figure:
        style.logarithmic(figure.axes[0].yaxis)  # the panels share it
        yield figure
