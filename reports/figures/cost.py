"""Quality against cost: each row's score over the arithmetic its training takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from experiments.tasks.columns import Column
from reports.figures import style
from reports.render.numbers import fixed, group_name, power
from reports.results.table import Row, Table
from reports.table.cost import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMES = 10


@contextmanager
def draw(table: Table, size: style.Size = style.PAPER) -> Iterator["Figure | None"]:
    """Scores over the counted operations of training; None if there is nothing to draw."""
    columns = [c for c in table.columns if sum(r.measures[c.key].mean is not None for r in table.rows) > 1][:2]
    if not columns or not any(map(counted, table.rows)):
        yield None
        return
    across = min(size.across, len(columns))
    with style.canvas(size, -(-len(columns) // across), across, height=2.9) as (figure, axes):
        panels = [panel for line in axes for panel in line][: len(columns)]
        for panel, column in zip(panels, columns, strict=True):
            _panel(panel, table, column)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(size.legend, len(labels)))
        for panel, column in zip(panels, columns, strict=True):
            known = _known(table, column)
            named = {style.label(row.key): _place(row, column) for row in _front(known, column)[:MOST_NAMES]}
            style.place_names(panel, named, [_place(row, column) for row in known])
        yield figure


def _panel(axes: Any, table: Table, column: Column) -> None:
    known = _known(table, column)
    groups = style.colours([_group(row) for row in known if row.key != table.base])
    axes.grid(True)
    axes.set_title(style.label(column.header))
    axes.set_xscale("log")
    if column.logarithmic:
        axes.set_yscale("log")
    for group, (colour, marker) in groups.items():
        axes.plot([], [], linestyle="None", color=colour, marker=marker, label=style.label(group))
    if table.base_row in known:
        axes.plot([], [], linestyle="None", color=style.BASE, marker="*", label="base")
    for row in known:
        colour, marker = (style.BASE, "*") if row.key == table.base else groups[_group(row)]
        (x, y), big = _place(row, column), {"markersize": 10} if row.key == table.base else {}
        [point] = axes.plot([x], [y], linestyle="None", color=colour, marker=marker, **big)
        style.mark(point, f"{row.key}\n{column.header} {fixed(y, column.digits)}\n{power(x)} operations of training")
    places = [_place(row, column) for row in _front(known, column)]
    axes.plot([x for x, _ in places], [y for _, y in places], color=style.FAINT, linewidth=0.8, zorder=0)
    style.logarithmic(axes.xaxis)
    if column.logarithmic:
        style.logarithmic(axes.yaxis)
    axes.margins(x=0.12, y=0.12)
    axes.set_xlabel("floating-point operations of training")
    axes.set_ylabel(style.LOWER if column.better == "lower" else style.HIGHER)


def _known(table: Table, column: Column) -> list[Row]:
    return [row for row in table.rows if row.measures[column.key].mean is not None and counted(row)]


def _group(row: Row) -> str:
    return group_name(row.group) if row.group and row.group != row.key else "others"


def _place(row: Row, column: Column) -> tuple[float, float]:
    return counted(row) or 0.0, row.measures[column.key].mean or 0.0


def _front(rows: list[Row], column: Column) -> list[Row]:
    """Rows that no row beats at the same cost or less."""
    sign = 1 if column.better == "higher" else -1
    best, front = float("-inf"), []
    for row in sorted(rows, key=lambda r: (counted(r) or 0.0, -sign * (r.measures[column.key].mean or 0))):
        value = sign * (row.measures[column.key].mean or 0)
        if value > best:
            best = value
            front.append(row)
    return front
