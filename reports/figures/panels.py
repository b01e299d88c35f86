"""Small multiples: one panel for each group of rows, base in each of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reports.figures import style
from reports.render.numbers import group_name
from reports.results.table import Row, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_PANELS, MOST_LINES = 12, 12  # with more rows a panel names those left out

Draw = Callable[[Any, Row, Mapping[str, Any]], None]  # axes, row, matplotlib's style of its line


@contextmanager
def by_group(table: Table, drawable: set[str], draw: Draw, x: str, y: str, size: style.Size) -> Iterator["Figure"]:
    """Draw every row of `drawable` (keys) in its group's panel. `x`, `y`: labels of the outer axes."""
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
            elif place + columns >= len(groups):  # the lowest of its column: sharing would hide its numbers
                panel.tick_params(labelbottom=True)
        figure.supxlabel(x, fontsize=size.font)
        figure.supylabel(y, fontsize=size.font)
        yield figure


def _groups(table: Table, drawable: set[str]) -> dict[str, list[Row]]:
    """Rows by group but base; rows without a group share one panel."""
    groups: dict[str, list[Row]] = {}
    for row in table.rows:
        if row.key in drawable and row.key != table.base:
            own = row.group if row.group and row.group != row.key else ""
            groups.setdefault(group_name(own) if own else "others", []).append(row)
    return groups or {"": []}
