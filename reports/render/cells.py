"""A table as heads and cells of Unicode text, before any format's escaping: the records, and the cells of each column.

The formats for readers share them. printed.py chooses the columns and arranges the cells in lines.
"""

import itertools
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from experiments.tasks.columns import Column
from reports.results.table import BRANCH, IMPORTED, Measure, Row, Table, change_digits
from reports.table.cost import COSTS, Cost, fitting
from reports.table.notes import in_order
from reports.table.settings import show


@dataclass(frozen=True)
class Head:
    """A column's head. `top` may span several columns (a metric); `sub` tells those apart."""

    key: str  # a setting's dotted name, or "metric.role"
    top: str
    sub: str = ""
    kind: str = "value"  # group, row, setting, label, value
    group: str = ""  # of the rows that the column shows; "" for all (reports/render/pivot.py)
    one_line: str = ""  # where heads have one line; `top` or `sub` if unset
    spans: str = ""  # replaces `metric` as what `top` names

    @property
    def metric(self) -> str:
        """ "bleu" of "bleu.change"; "" of a column of one word."""
        return self.key.rpartition(".")[0]

    @property
    def role(self) -> str:
        """ "change" of "bleu.change"."""
        return self.key.rpartition(".")[2]

    @property
    def spanned_by(self) -> str:
        """The key of the spanning head `top`, equal for the columns that it spans."""
        return self.spans or self.metric

    @property
    def sub_alone(self) -> str:
        """The sub-head below `top`, which names the metric already."""
        return self.sub.replace("paper Δ", "Δ")

    @property
    def alone(self) -> str:
        """The head in one line."""
        return self.one_line or (self.top if self.sub in ("", "ours") else self.sub)


def spanned(heads: Sequence[Head]) -> Iterator[tuple[bool, list[Head]]]:
    """Neighbouring heads that `top` may span, and whether it does: two lines of heads, of any format."""
    for (_, subs), group in itertools.groupby(heads, key=lambda head: (head.spanned_by, bool(head.sub))):
        of = list(group)
        yield bool(subs) and len(of) > 1, of


@dataclass(frozen=True)
class Cell:
    text: str = ""
    emphasis: bool = False
    mark: str = ""  # printed raised, after the text
    provisional: bool = False  # a mean or change over the seeds that are there
    span: int = 1  # columns that the cell takes; 0: taken by the one to its left


@dataclass(frozen=True)
class Line:
    rows: tuple[Row, ...]  # several in a pivoted table: one of each group
    opens_group: bool
    cells: tuple[Cell, ...]  # one per head

    @property
    def row(self) -> Row:
        """The first of the rows."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """The rows' keys."""
        return ", ".join(dict.fromkeys(row.key for row in self.rows))

    def row_under(self, head: Head) -> Row | None:
        """The row whose number stands in a column; None if the line has none there."""
        return next((row for row in self.rows if head.group in ("", row.group)), None)


@dataclass(frozen=True)
class Grid:
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    pivoted: bool = False


def settings_of(grid: Grid, line: Line) -> list[Cell]:
    """The cells of a line that show settings."""
    return [cell for head, cell in zip(grid.heads, line.cells, strict=True) if head.kind == "setting"]


def labels_span(grid: Grid) -> bool:
    """A label may stand across the settings, as in the paper: wherever there is one, they are blank."""
    labelled = [settings_of(grid, line) for line in grid.lines if line.row.label]
    return not grid.pivoted and bool(labelled and labelled[0]) and not any(c.text for cells in labelled for c in cells)


# --- Numbers, gaps and groups as the cells of a table print them


def group_name(group: str) -> str:
    """(A), as in the paper; longer names stand as they are."""
    return f"({group})" if 0 < len(group) <= 2 else group


def fixed(value: float | None, digits: int, signed: bool = False) -> str:
    """A number with `digits` after the point and a true minus; huge ones in powers of ten; no negative zero.

    "" for None.
    """
    if value is None:
        return ""
    if abs(value) >= 1e6:
        text = f"{value:{'+' if signed else ''}.1e}"
    else:
        text = f"{value:{'+' if signed else ''}.{digits}f}"
        if float(text) == 0:
            text = text.lstrip("+-")
    return text.replace("-", "−")


def gap(measure: Measure) -> str:
    """A cell without a number: "–", "– (failed)", "– (2/3, 1 running)"."""
    reasons = Counter(reason for reason in measure.lacking if reason)
    if measure.requested == 1:
        return f"– ({next(iter(reasons))})" if reasons else "–"
    parts = [f"{len(measure.values)}/{measure.requested}", *(f"{n} {reason}" for reason, n in reasons.items())]
    return f"– ({', '.join(parts)})"


def decimals(values: Sequence[float | None]) -> int:
    """Digits after the point that the most precise of the values was given with."""
    texts = [repr(float(value)) for value in values if value is not None]
    return max((len(text.rpartition(".")[2]) for text in texts if not text.endswith(".0")), default=0)


def power(value: float | None) -> str:
    """ "9.4e17"."""
    if value is None or not math.isfinite(value):
        return ""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}" if value else "0"


# --- The columns of a table, with what makes the cell of a row


STALE = "†"
MARK = "*"  # of a tested difference
NONE = "–"  # the row has nothing to print in this column

Layout = list[tuple[Head, Callable[[Row], Cell]]]  # columns, each with the function that makes a row's cell


def layout_of(table: Table, costs: Sequence[Cost]) -> Layout:
    """Return every column of the table, in the paper's order: settings that vary, each metric, costs, n.

    A metric has columns for its value, its change and the paper's numbers. costs: those that the table prints.
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
    """Cells of rows that were run by `make`, of cited ones from the published numbers."""
    return lambda row: make(row) if row.outcomes else published(head, row, table)


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


def cell_of_group(row: Row) -> Cell:
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
    """Return the columns of costs, each with the published numbers; a cost that no row has gets no column."""
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


# --- Text on its way into a document: one line, without characters that steer a terminal or reorder what is read


_REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_BREAKING = {"Cc", "Zl", "Zp"}


def plain(text: object) -> str:
    """Controls and line breaks become spaces, direction marks go, lone surrogates become U+FFFD; then stripped."""
    text = str(text)
    return (text if text.isascii() and text.isprintable() else "".join(map(_harmless, text))).strip()


def _harmless(char: str) -> str:
    if char in _REORDERING:
        return ""
    category = unicodedata.category(char)
    if category in _BREAKING:
        return " "
    return "\ufffd" if category == "Cs" else char
