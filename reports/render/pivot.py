"""Pivoted tables: rows with the same label are printed on one line, and their groups are columns.

In Table 2 of the paper, for example, the groups are language pairs. This module rearranges the columns of the layout,
so all formats for readers print the same pivoted table. JSON and CSV keep one record per row with the row's runs.
Programs can pivot these records.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from reports.render.cells import Cell, Grid, Head, Line
from reports.render.layout import NONE
from reports.results.table import Row, Table

_FIRST = ("group", "row", "label")  # kinds of columns that come before all others, as in the paper

Made = tuple[Head, Callable[[Row], Cell]]  # the head of a column, and the function that makes a row's cell
Members = Mapping[str, Row]  # group → row of a line
Columns = list[tuple[Head, list[Cell]]]


def pivoted(table: Table, rows: Sequence[Row], layout: Sequence[Made]) -> Grid:
    """Return the pivoted table with one line per label. Cited results have separate lines above the lines of runs."""
    found: dict[tuple[bool, str], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((_cited(row), row.label), {})[row.group] = row
    lines = [dict(sorted(of.items(), key=lambda item: list(table.pivot).index(item[0]))) for of in found.values()]
    metrics = {column.key for column in table.columns}
    columns: Columns = []
    layout = sorted(layout, key=lambda made: _FIRST.index(made[0].kind) if made[0].kind in _FIRST else len(_FIRST))
    for metric, block in itertools.groupby(layout, key=lambda made: made[0].metric if made[0].kind == "value" else ""):
        if metric in metrics:
            columns += _of_metric(list(block), table, lines)
        else:
            columns += [column for made in block for column in _of_other(made, table, lines)]
    opens = [True, *(before[0] != after[0] for before, after in itertools.pairwise(found))]
    made = (
        Line(tuple(of.values()), first, tuple(cells[number] for _, cells in columns))
        for number, (of, first) in enumerate(zip(lines, opens, strict=True))
    )
    return Grid(tuple(head for head, _ in columns), tuple(made), pivoted=True)


def _cited(row: Row) -> bool:
    return not row.outcomes


def _of_metric(block: Sequence[Made], table: Table, lines: Sequence[Members]) -> Columns:
    """Return the columns of a metric: for each group the value, its change and the published value under one head."""
    columns: Columns = []
    for group, name in table.pivot.items():
        for head, make in block:
            spans = f"{head.metric} {group}"
            own = replace(head, top=f"{head.top} {name}", group=group, one_line=f"{head.alone} {name}", spans=spans)
            columns += _column(own, make, lines)
    return columns


def _of_other(made: Made, table: Table, lines: Sequence[Members]) -> Columns:
    """Return the columns of a setting or a cost: one column if the rows of every line agree, else one per group."""
    head, make = made
    if head.kind == "group":
        return []
    if head.kind == "row":
        return [(head, [Cell(", ".join(dict.fromkeys(row.key for row in of.values()))) for of in lines])]
    if all(len({make(row) for row in of.values()}) == 1 for of in lines):
        return [(head, [make(next(iter(of.values()))) for of in lines])]
    top = f"{head.top}, {head.sub}" if head.sub else head.top
    columns: Columns = []
    for group, name in table.pivot.items():
        own = replace(head, top=top, sub=name, group=group, one_line=f"{head.alone} {name}", spans=head.key)
        columns += _column(own, make, lines)
    # Only numbers are merged. In a column of a setting, a blank cell would mean that the row has base's value.
    return _across(columns) if head.kind == "value" else columns


def _column(head: Head, make: Callable[[Row], Cell], lines: Sequence[Members]) -> Columns:
    """Return the column of one group; [] if no row of the group has a text in the column.

    If a line has no row in this group, its cell may contain NONE: for a line of runs in a column of our values, for a
    line of cited results in a column of published values. In other columns, the cell is empty.
    """
    there = [of.get(head.group) for of in lines]
    cells = [make(row) if row else Cell() for row in there]
    if not any(cell.text for cell in cells):
        return []
    dashes = [head.role == ("paper" if _cited(next(iter(of.values()))) else "ours") for of in lines]
    absent = [row is None and dash for row, dash in zip(there, dashes, strict=True)]
    return [(head, [Cell(NONE) if gap else cell for gap, cell in zip(absent, cells, strict=True)])]


def _across(columns: Columns) -> Columns:
    """Print a number that is equal in all groups once, across the columns of the groups.

    Table 2 of the paper prints the training cost for both language pairs in this way.
    """
    for number, cells in enumerate(zip(*(cells for _, cells in columns), strict=True)):
        if len(cells) > 1 and cells[0].text not in ("", NONE) and len(set(cells)) == 1:
            for place, (_, of) in enumerate(columns):
                of[number] = Cell(span=0) if place else replace(cells[0], span=len(cells))
    return columns
