"""The columns of a table, each with the function that makes a row's cell."""

import itertools
import math
from collections.abc import Callable, Sequence

from experiments.tasks.columns import Column
from reports.render.cells import Cell, Head, gap, group_name
from reports.results.number_text import decimals, fixed, power
from reports.results.table import BRANCH, IMPORTED, Measure, Row, Table, change_digits
from reports.table.cited_rows import in_order
from reports.table.cost import COSTS, Cost, fitting
from reports.table.settings import show

STALE = "†"  # mark of stale results, made by code that differs from the present code
MARK = "*"  # mark of a significant change
NONE = "–"  # text of a cell if the row does not use the setting, or if a pivoted line has no row in the column

Layout = list[tuple[Head, Callable[[Row], Cell]]]  # columns, each with the function that makes a row's cell


def layout_of(table: Table, costs: Sequence[Cost]) -> Layout:
    """Return every column of the table, in the order of the paper's tables: settings that vary, each metric, costs, n.

    A metric has columns for its value, its change and the paper's numbers. costs: the costs that the table prints.
    """
    rows = in_order(table)
    layout: Layout = []
    if any(row.group and row.group != row.key for row in rows):
        layout.append((Head("group", "", kind="group"), cell_of_group))
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


def _of_any_row(head: Head, make: Callable[[Row], Cell], table: Table) -> Callable[[Row], Cell]:
    """Return a function that makes a row's cell: by `make` for runs, from published numbers for cited results."""
    return lambda row: make(row) if row.outcomes else published(head, row, table)


def published(head: Head, row: Row, table: Table) -> Cell:
    """Return the cell of a cited result: its name, or its published number."""
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


def cell_of_group(row: Row) -> Cell:
    return Cell(group_name(row.group)) if row.group != row.key else Cell()


def setting(name: str, head: str, table: Table) -> tuple[Head, Callable[[Row], Cell]]:
    """Return the column of a setting. A cell has the row's value if `row.settings` contains the setting.

    Otherwise, the cell is NONE if the row does not use the setting and has no label. In all other cases, the cell is
    blank, which means that the row has base's value.
    """

    def cell(row: Row) -> Cell:
        if name in row.settings:
            return Cell(show(name, row.settings[name]))
        said = row.label and row.key != table.base_of(row)
        return Cell() if said or row.reads(name) else Cell(NONE)

    return Head(name, head, kind="setting"), cell


def _metric(column: Column, table: Table) -> Layout:
    """Return the columns of a metric: our value, our change from base, the paper's value, the paper's change.

    A column is left out if no row has a number for it.
    """
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
    """Return the columns of costs and of their published numbers.

    A cost with `always` is left out if its value is unknown for all rows.
    """
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
    """Return the function that makes the cells of a cost.

    A number has `cost.digits` digits after the decimal point. If `cost.digits` is None, a number has enough digits (1
    to 6) to print three significant digits of the smallest value. Costs with `power` are printed with an exponent.
    """
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
    """Return the column of a published number that no run measures."""
    digits = decimals([row.paper.get(name) for row in table.rows])
    return Head(f"{name}.paper", f"{head} (paper)"), lambda row: Cell(fixed(row.paper.get(name), digits))


def _seeds(row: Row) -> Cell:
    asked = len(row.outcomes)
    return Cell(str(row.n) if row.n == asked else f"{row.n}/{asked}")
