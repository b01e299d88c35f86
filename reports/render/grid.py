"""The table as heads and cells of Unicode text, before any format's escaping: shared by the formats for readers."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from experiments.tasks.columns import Column
from reports.render.cells import Cell, Grid, Head, Line, decimals, fixed, gap, group_name, power
from reports.results.comparable import change_digits
from reports.results.table import BRANCH, IMPORTED, Measure, Row, Table
from reports.table.cost import COSTS, Cost, fitting
from reports.table.notes import in_order
from reports.table.settings import show

STALE = "†"
MARK = "*"  # of a tested difference


Layout = list[tuple[Head, Callable[[Row], Cell]]]


def layout_of(table: Table, costs: Sequence[Cost]) -> Layout:
    """Every column that the table has, as in the paper, with what makes a row's cell in it: what varies, each metric
    with its change and the paper's, params, n. `costs`: those that it prints.
    """
    rows = in_order(table)
    layout: Layout = []
    if any(row.group and row.group != row.key for row in rows):
        layout.append((Head("group", "", kind="group"), _group))
    layout.append((Head("row", "row", kind="row"), lambda row: Cell(row.name)))
    layout += [setting(name, head, table) for name, head in table.settings.items()]
    if any(row.label for row in rows):
        layout.append((Head("label", "", kind="label"), lambda row: Cell(row.label)))
    for column in table.listed:
        layout += _metric(column, table)
    layout += _costs(table, costs)
    layout += [_printed_alone(name, head, table) for name, head in table.spec.published.items()]
    layout.append((Head("n", "n"), _seeds))
    return [(head, _of_any_row(head, make, table)) for head, make in layout]


def arranged(table: Table, layout: Layout) -> Grid:
    """The cells of some columns, line by line."""
    rows = in_order(table)
    if table.pivot:
        return pivoted(table, rows, layout)
    opens = [number == 0 or row.group != rows[number - 1].group for number, row in enumerate(rows)]
    lines = tuple(_line(row, first, layout) for row, first in zip(rows, opens, strict=True))
    return Grid(tuple(head for head, _ in layout), lines)


def _of_any_row(head: Head, make: Callable[[Row], Cell], table: Table) -> Callable[[Row], Cell]:
    """Cells of rows that were run by `make`, of cited ones from the published numbers."""
    return lambda row: make(row) if row.outcomes else published(head, row, table)


def _line(row: Row, opens_group: bool, layout: Layout) -> Line:
    cells = [make(row) for _, make in layout]
    if layout[0][0].kind == "group":
        cells[0] = _group(row) if opens_group else Cell()
    return Line((row,), opens_group, tuple(cells))


def published(head: Head, row: Row, table: Table) -> Cell:
    """A cell of a cited row: its name, or a number among the paper's."""
    if head.kind in ("row", "label"):
        return Cell(row.key if head.kind == "row" else row.label)
    metric, _, role = head.key.rpartition(".")
    if head.kind != "value" or role != "paper":
        return Cell()
    name = next((column.paper for column in table.columns if column.key == metric), metric)
    value = row.paper.get(name)
    if any(cost.power for cost in COSTS if cost.key == name):
        return Cell(power(value))
    return Cell(fixed(value, decimals([value, *(ours.paper.get(name) for ours in table.rows)])))


def _group(row: Row) -> Cell:
    return Cell(group_name(row.group)) if row.group != row.key else Cell()


def setting(name: str, head: str, table: Table) -> tuple[Head, Callable[[Row], Cell]]:
    """A setting's column; a blank cell is base's value, or said by the row's label."""

    def cell(row: Row) -> Cell:
        if name in row.settings:
            return Cell(show(name, row.settings[name]))
        said = row.label and row.key != table.base_of(row)
        return Cell() if said or row.reads(name) else Cell(NONE)

    return Head(name, head, kind="setting"), cell


def _metric(column: Column, table: Table) -> Layout:
    """Ours; the change from base; the paper's; the paper's change. A part that no row has gets no column."""
    key = column.key
    measures = [row.measures[key] for row in table.rows]
    delta = "Δ ln" if column.logarithmic else "Δ"
    digits = decimals([m.reported for m in measures])
    change_places = change_digits(column) if column.logarithmic else digits
    places, provisional = change_digits(column), table.provisional
    changed = any(m.change is not None or (provisional and m.change_so_far is not None) for m in measures)
    reported = any(m.reported is not None for m in measures) or any(column.paper in row.paper for row in table.cited)
    parts: list[tuple[bool, str, str, Callable[[Row], Cell]]] = [
        (any(m.requested for m in measures), "ours", "ours", lambda row: _value(row, column, provisional)),
        (changed, "change", delta, lambda row: _change(row.measures[key], places, provisional)),
        (reported, "paper", "paper", lambda row: Cell(fixed(row.measures[key].reported, digits))),
        (
            any(m.reported_change is not None for m in measures),
            "paper_change",
            f"paper {delta}",
            lambda row: Cell(fixed(row.measures[key].reported_change, change_places, signed=True)),
        ),
    ]
    return [(Head(f"{key}.{role}", column.header, sub), make) for there, role, sub, make in parts if there]


def _value(row: Row, column: Column, provisional: bool) -> Cell:
    measure = row.measures[column.key]
    if not measure.requested:
        return Cell()
    if provisional and measure.mean_so_far is not None:
        number = fixed(measure.mean_so_far, column.digits)
        return Cell(f"{number} ({len(measure.values)}/{measure.requested})", provisional=True)
    if measure.mean is None:
        return Cell(gap(measure))
    text = fixed(measure.mean, column.digits)
    if measure.sd is not None:
        text += f" ± {fixed(measure.sd, column.digits)}"
    return Cell(text, measure.best, STALE * row.stale + BRANCH * row.branch + IMPORTED * row.imported)


def _change(measure: Measure, digits: int, provisional: bool) -> Cell:
    if provisional and measure.change is None and measure.change_so_far is not None:
        return Cell(fixed(measure.change_so_far, digits, signed=True), provisional=True)
    return Cell(fixed(measure.change, digits, signed=True), mark=MARK if measure.test and measure.test.marked else "")


def _costs(table: Table, shown: Sequence[Cost]) -> Layout:
    """What no evaluation measures, each with the published numbers; a cost that no row has gets no column."""
    layout: Layout = []
    for _, group in itertools.groupby(shown, key=lambda cost: cost.key):
        costs = list(group)
        reported = [row.paper.get(costs[0].key) for row in table.rows]
        published = [value for value in reported if value is not None]
        for number, cost in enumerate(costs):
            known = [value for row in table.rows if (value := cost.value(row, table)) is not None]
            cost = fitting(cost, known, published)
            if known or not cost.always:
                role = "ours" if number == 0 else cost.sub.replace(" ", "_")
                alone = "" if number or cost.sub in ("", "ours") else f"{cost.header} ({cost.sub})"
                head = Head(f"{cost.key}.{role}", cost.header, cost.sub, one_line=alone)
                layout.append((head, _cost(cost, known, table)))
        if published:
            layout.append((Head(f"{costs[0].key}.paper", costs[0].header, "paper"), _reported(costs[0], reported)))
    return layout


def _cost(cost: Cost, known: Sequence[float], table: Table) -> Callable[[Row], Cell]:
    """One digit after the point, or as many as show three figures of the smallest value; or a power of ten."""
    factor = 1 / cost.unit
    smallest = min((value for value in known if value > 0), default=10 / factor) * factor
    places = min(6, max(1, 2 - math.floor(math.log10(smallest)))) if cost.digits is None else cost.digits

    return lambda row: _number(cost, cost.value(row, table), factor, places)


def _reported(cost: Cost, values: Sequence[float | None]) -> Callable[[Row], Cell]:
    digits = decimals(values) if cost.digits is None else cost.digits

    return lambda row: _number(cost, row.paper.get(cost.key), 1.0, digits)


def _number(cost: Cost, value: float | None, factor: float, digits: int) -> Cell:
    return Cell(power(value) if cost.power else fixed(None if value is None else value * factor, digits))


def _printed_alone(name: str, head: str, table: Table) -> tuple[Head, Callable[[Row], Cell]]:
    """A number of the paper that nothing here measures."""
    digits = decimals([row.paper.get(name) for row in table.rows])
    return Head(f"{name}.paper", f"{head} (paper)"), lambda row: Cell(fixed(row.paper.get(name), digits))


def _seeds(row: Row) -> Cell:
    asked = len(row.outcomes)
    return Cell(str(row.n) if row.n == asked else f"{row.n}/{asked}")


# --- A pivoted table: rows of one label stand on one line, their groups are columns
# So is Table 2 of the paper, whose groups are language pairs. It works on the columns that are laid out already, so
# that every format for readers prints it alike. JSON and CSV keep one record per row: programs pivot by
# themselves, and a record leads to its runs.


NONE = "–"  # the line has no row in this column
_FIRST = ("group", "row", "label")  # as the paper has it: what varies in the settings is not the table's subject

Made = tuple[Head, Callable[[Row], Cell]]  # a column, and a row's cell in it
Members = Mapping[str, Row]  # a line's rows, by group
Columns = list[tuple[Head, list[Cell]]]


def pivoted(table: Table, rows: Sequence[Row], layout: Sequence[Made]) -> Grid:
    """One line per label; cited results, which are never on a line with rows that were run, stay above these."""
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
    """For each group the value, its change and the published value under one head."""
    columns: Columns = []
    for group, name in table.pivot.items():
        for head, make in block:
            spans = f"{head.metric} {group}"
            own = replace(head, top=f"{head.top} {name}", group=group, one_line=f"{head.alone} {name}", spans=spans)
            columns += _column(own, make, lines)
    return columns


def _of_other(made: Made, table: Table, lines: Sequence[Members]) -> Columns:
    """A setting or a cost: once if every line's rows agree, else a column for each group under one head."""
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
    return _across(columns) if head.kind == "value" else columns  # a blank setting is base's


def _column(head: Head, make: Callable[[Row], Cell], lines: Sequence[Members]) -> Columns:
    """One group's column; none if no row of the group has anything to print there."""
    there = [of.get(head.group) for of in lines]
    cells = [make(row) if row else Cell() for row in there]
    if not any(cell.text for cell in cells):
        return []
    dashes = [head.role == ("paper" if _cited(next(iter(of.values()))) else "ours") for of in lines]
    absent = [row is None and dash for row, dash in zip(there, dashes, strict=True)]
    return [(head, [Cell(NONE) if gap else cell for gap, cell in zip(absent, cells, strict=True)])]


def _across(columns: Columns) -> Columns:
    """A number that is equal in all groups is printed once, across their columns: the paper's one cost for both."""
    for number, cells in enumerate(zip(*(cells for _, cells in columns), strict=True)):
        if len(cells) > 1 and cells[0].text not in ("", NONE) and len(set(cells)) == 1:
            for place, (_, of) in enumerate(columns):
                of[number] = Cell(span=0) if place else replace(cells[0], span=len(cells))
    return columns
