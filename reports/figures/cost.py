"""Quality against cost: each row's score over the arithmetic its training takes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from experiments.tasks.columns import Column
from reports.figures import style
from reports.render.numbers import group_name
from reports.results.table import Row, Table
from reports.table.cost import counted

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMES = 10


@contextmanager
def draw(table: Table) -> Iterator["Figure | None"]:
    """Scores over the counted operations of training; None if there is nothing to draw."""
    columns = [c for c in table.columns if sum(r.measures[c.key].mean is not None for r in table.rows) > 1][:2]
    if not columns or not any(map(counted, table.rows)):
        yield None
        return
    with style.canvas(1, len(columns), height=2.9) as (figure, axes):
        for panel, column in zip(axes[0], columns, strict=True):
            _panel(panel, table, column)
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)))
        yield figure


def _panel(axes: Any, table: Table, column: Column) -> None:
    known = [row for row in table.rows if row.measures[column.key].mean is not None and counted(row)]
    groups = style.colours([_group(row) for row in known if row.key != table.base])
    axes.grid(True)
    axes.set_xscale("log")
    if column.logarithmic:
        axes.set_yscale("log")
    for group, (colour, marker) in groups.items():
        members = [row for row in known if _group(row) == group and row.key != table.base]
        axes.plot(*_places(members, column), linestyle="None", color=colour, marker=marker, label=style.label(group))
    if table.base_row in known:
        axes.plot(*_places([table.base_row], column), linestyle="None", color=style.BASE, marker="*",
                  markersize=8, label="base")  # fmt: skip
    front = _front(known, column)
    axes.plot(*_places(front, column), color=style.FAINT, linewidth=0.8, zorder=0)
    for row in front[:MOST_NAMES]:
        x, y = _places([row], column)
        axes.annotate(style.label(row.key), (x[0], y[0]), textcoords="offset points", xytext=(4, 3), fontsize=6)
    style.logarithmic(axes.xaxis)
    if column.logarithmic:
        style.logarithmic(axes.yaxis)
    axes.set_xlabel("floating-point operations of training")
    axes.set_ylabel(style.label(column.header))


def _group(row: Row) -> str:
    return group_name(row.group) if row.group and row.group != row.key else "others"


def _places(rows: list[Any], column: Column) -> tuple[list[float], list[float]]:
    return [counted(row) or 0.0 for row in rows], [row.measures[column.key].mean for row in rows]


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
