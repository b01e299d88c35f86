"""The figure of all rows' changes from base, with their intervals and the paper's changes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from experiments.tasks.columns import Column
from reports.figures import style
from reports.render.cells import group_name
from reports.results.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MOST_ROWS, MOST_COLUMNS = 60, 3


@contextmanager
def draw_effects(table: Table, size: style.Size = style.PAPER) -> Iterator["Figure | None"]:
    """Draw the changes of up to three columns, with one line per row. Yield None if no row has a change.

    The panels are side by side, or one below the other for a phone.
    """
    columns = [c for c in table.listed if any(r.measures[c.key].change is not None for r in table.rows)]
    rows = [r for r in table.rows if r.key != table.base and any(r.measures[c.key].change is not None for c in columns)]
    columns, rows = columns[:MOST_COLUMNS], rows[:MOST_ROWS]
    if not rows:
        yield None
        return
    across = min(size.across, len(columns))
    height, grid = 0.9 + 0.17 * len(rows), {"sharey": True} if across > 1 else {}
    down = -(-len(columns) // across)
    with style.canvas(size, down, across, height=height, **grid) as (figure, axes):
        panels = [panel for line in axes for panel in line][: len(columns)]
        for panel, column in zip(panels, columns, strict=True):
            _panel(panel, rows, column)
            panel.set_yticks(range(len(rows)), [_name(row) for row in rows])
            # The first row is on top. Without the margin, the marks of the first and the last row would be cut off.
            panel.set_ylim(len(rows) - 0.4, -0.6)
        legends = (panel.get_legend_handles_labels() for panel in panels)
        shown = {text: handle for both in legends for handle, text in zip(*both, strict=True)}
        figure.legend(shown.values(), shown.keys(), loc="outside lower center", ncols=min(size.legend, len(shown)))
        yield figure


def _name(row: Row) -> str:
    group = f"{group_name(row.group)} " if row.group and row.group != row.key else ""
    return style.label(group + row.key)


def _panel(axes: Any, rows: list[Row], column: Column) -> None:
    axes.axvline(0, color=style.FAINT, linewidth=0.8)
    axes.grid(True, axis="y")
    axes.set_title(style.label(column.header))
    unit = "Δ ln from base" if column.logarithmic else "Δ from base"
    axes.set_xlabel(style.toward(unit, column))
    measures = [row.measures[column.key] for row in rows]
    for place, measure in enumerate(measures):
        if measure.test is not None:
            axes.plot([measure.test.low, measure.test.high], [place, place], color=style.COLOURS[0], linewidth=1)
    tested = any(m.test for m in measures)
    hollow, filled = {"markerfacecolor": style.EMPTY, "color": style.COLOURS[0]}, {"color": style.COLOURS[0]}
    axes.plot([], [], linestyle="None", marker="o", label="ours, 95% interval" if tested else "ours", **hollow)
    if tested:
        axes.plot([], [], linestyle="None", marker="o", label="marked *", **filled)
    if any(m.reported_change is not None for m in measures):
        axes.plot([], [], linestyle="None", marker="x", color=style.COLOURS[1], label="as published")
    for place, measure in enumerate(measures):
        if measure.change is not None:
            look = filled if measure.test and measure.test.marked else hollow
            axes.plot([measure.change], [place], linestyle="None", marker="o", **look)
        if measure.reported_change is not None:
            axes.plot([measure.reported_change], [place], linestyle="None", marker="x", color=style.COLOURS[1])
