"""Changes from base with their intervals, the paper's changes beside them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from experiments.tasks.columns import Column
from reports.figures import style
from reports.render.numbers import group_name
from reports.results.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_ROWS, MOST_COLUMNS = 60, 3


@contextmanager
def draw(table: Table) -> Iterator["Figure | None"]:
    """Up to three columns side by side, one line per row; None where no change is known."""
    columns = [c for c in table.columns if any(r.measures[c.key].change is not None for r in table.rows)]
    rows = [r for r in table.rows if r.key != table.base and any(r.measures[c.key].change is not None for c in columns)]
    columns, rows = columns[:MOST_COLUMNS], rows[:MOST_ROWS]
    if not rows:
        yield None
        return
    with style.canvas(1, len(columns), height=0.9 + 0.17 * len(rows), sharey=True) as (figure, axes):
        for panel, column in zip(axes[0], columns, strict=True):
            _panel(panel, rows, column)
        axes[0][0].set_yticks(range(len(rows)), [_name(row) for row in rows])
        axes[0][0].set_ylim(len(rows) - 0.4, -0.6)  # the first row on top, whole marks in the outer two
        legends = (panel.get_legend_handles_labels() for panel in axes[0])
        shown = {text: handle for both in legends for handle, text in zip(*both, strict=True)}
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=len(shown))
        yield figure


def _name(row: Row) -> str:
    group = f"{group_name(row.group)} " if row.group and row.group != row.key else ""
    return style.label(group + row.key)


def _panel(axes: Any, rows: list[Row], column: Column) -> None:
    axes.axvline(0, color=style.FAINT, linewidth=0.8)
    axes.grid(True, axis="y")
    unit = "Δ ln" if column.logarithmic else "Δ"
    better = "left" if column.better == "lower" else "right"
    axes.set_xlabel(f"{unit} {style.label(column.header)} from base ({better} is better)")
    measures = [row.measures[column.key] for row in rows]
    for place, measure in enumerate(measures):
        if measure.test is not None:
            axes.plot([measure.test.low, measure.test.high], [place, place], color=style.COLOURS[0], linewidth=1)
    paper = [(m.reported_change, i) for i, m in enumerate(measures) if m.reported_change is not None]
    ours = [(m.change, i, bool(m.test and m.test.marked)) for i, m in enumerate(measures) if m.change is not None]
    look = {"linestyle": "None", "color": style.COLOURS[0], "marker": "o"}
    tested = any(m.test for m in measures)
    plain_words = "ours, 95% interval" if tested else "ours"
    axes.plot([x for x, _, marked in ours if not marked], [i for _, i, m in ours if not m],
              markerfacecolor="white", label=plain_words, **look)  # fmt: skip
    if tested:
        axes.plot([x for x, _, marked in ours if marked], [i for _, i, m in ours if m], label="marked *", **look)
    if paper:
        x, y = zip(*paper, strict=True)
        axes.plot(x, y, linestyle="None", marker="x", color=style.COLOURS[1], label="as published")
