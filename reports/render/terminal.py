"""The format for a terminal: as many columns as fit, space between groups, and colours for cells that need attention.

If columns are named, all of them are printed, and long texts are broken into lines. Otherwise the least important
columns are left out if they do not fit: first the paper's numbers, then costs, settings that no row changes, and
further metrics.
"""

import io
import shutil
from collections.abc import Sequence
from dataclasses import replace

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from experiments.messages import number
from reports.render.cells import Cell, Grid, Head, Line, plain
from reports.render.printed import CHANGES, NAMES, PAPERS, Printed, printed
from reports.results.table import Measure, Row, Table

_LABEL = 24  # maximum number of characters of a label on one line
_GAP = 2  # number of spaces between columns


def render(table: Table) -> str:
    """Return the table as text without colours, for the width of the terminal (80 if there is no terminal)."""
    stream = io.StringIO()
    columns = shutil.get_terminal_size((80, 24)).columns
    Console(file=stream, width=columns, color_system=None, highlight=False).print(for_terminal(table, columns))
    return "\n".join(line.rstrip() for line in stream.getvalue().split("\n"))


def for_terminal(table: Table, columns: int) -> RenderableType:
    """Return the table for rich, at most `columns` characters wide. Control characters in texts are removed."""
    shown = printed(table, "terminal")
    keep = _fitting(shown, columns)
    kept = {shown.grid.heads[i].key for i in keep}
    every = {head.key for head in (*shown.grid.heads, *shown.hidden.heads) if head.kind not in ("group", "row")}
    hidden = len(every - kept)
    parts: list[RenderableType] = [Text(plain(table.bundle), style="yellow")] if table.bundle else []
    parts += [Text(plain(shown.table.title), style="bold")] if shown.table.title else []
    parts += [_rich(shown, keep)]
    parts += [_claims(table)] if table.claims else []
    parts += [Text(f"Warning: {plain(text)}", style="yellow") for text in shown.warnings]
    parts += [Padding(Text(plain(text), style="dim"), (0, 0, 0, 2)) for text in shown.notes]
    more = [f"{number(hidden, 'more column')}: --format markdown, or --columns A,B,…"] if hidden else []
    more += [f"{number(len(shown.left_out), 'more note')}: --notes full"] if shown.left_out else []
    parts += [Text("; ".join(more), style="dim italic")] if more else []
    return Group(*parts)


def _claims(table: Table) -> RichTable:
    """Return a table of claims: whether each holds in the published numbers and here. The notes have the details."""
    made = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for head in ("claim", "published", "here"):
        made.add_column(Text(head), min_width=13, overflow="fold")
    for claim in table.claims:
        states = (claim.check, claim.paper.state if claim.paper else "", claim.here.state)
        made.add_row(*(Text(plain(state)) for state in states))
    return made


def so_far(table: Table, columns: int, lines: int) -> RenderableType:
    """Return the table without notes, for display during training.

    If not all rows fit, rows without a number are left out.
    """
    shown = printed(table, "terminal")
    keep = _fitting(shown, columns)
    if len(table.rows) + len({row.group for row in table.rows}) + 2 > lines:
        full = {row.key for row in table.rows if any(measure.values for measure in row.measures.values())}
        grid = replace(shown.grid, lines=tuple(line for line in shown.grid.lines if line.row.key in full))
        shown = replace(shown, grid=grid)
    return _rich(shown, keep)


def _fitting(shown: Printed, columns: int) -> list[int]:
    """Return the indices of the columns to print."""
    grid, table = shown.grid, shown.table
    keep = [i for i, head in enumerate(grid.heads) if head.kind != "group"]
    if shown.choices.columns:
        return keep
    widths = _widths(grid)
    droppable = [i for i in keep if grid.heads[i].kind != "row"]
    for i in sorted(droppable, key=lambda i: (_importance(i, grid, table), -i)):
        if sum(widths[j] + _GAP for j in keep) - _GAP <= columns or len(keep) <= 2:
            break
        keep.remove(i)
    return keep


def _importance(place: int, grid: Grid, table: Table) -> int:
    """Return the importance of a column. Columns with the smallest importance are left out first."""
    head = grid.heads[place]
    metrics = list(dict.fromkeys(other.metric for other in grid.heads if other.role == "ours"))
    filled = [line for line in grid.lines if line.cells[place].text and line.row is not table.base_row]
    if head.kind == "label":
        return 8 if 2 * len(filled) > len(grid.lines) else 3  # labels are less important if few rows have one
    if head.kind == "setting":
        return 5 if filled else 2
    if head.role in PAPERS:
        return 0 if head.role == "paper_change" else 1
    if head.role in CHANGES:
        return 6 if head.metric == metrics[0] else 3
    if head.metric in metrics:
        return {0: 9, 1: 7}.get(metrics.index(head.metric), 4)
    return 3 if head.metric == "params" or head.key == "n" else 1


def _widths(grid: Grid) -> list[int]:
    return [max(_of_cells(grid, i), *map(cell_len, _head(grid, i).split("\n"))) for i in range(len(grid.heads))]


def _of_cells(grid: Grid, place: int) -> int:
    full = max((cell_len(line.cells[place].text + line.cells[place].mark) for line in grid.lines), default=0)
    return min(full, _LABEL) if grid.heads[place].kind == "label" else full


def _head(grid: Grid, place: int) -> str:
    """Return the text of a head, over two lines if it is wider than the cells below."""
    head = grid.heads[place]
    words = "" if head.kind in NAMES else plain(head.alone)
    return words.replace(" ", "\n", 1) if cell_len(words) > _of_cells(grid, place) else words


def _rich(shown: Printed, keep: Sequence[int]) -> RichTable:
    grid = shown.grid
    made = RichTable(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold", show_edge=False)
    for i in keep:
        head = grid.heads[i]
        words = head.kind in NAMES
        made.add_column(
            Text(_head(grid, i)),
            justify="left" if words else "right",
            vertical="top",
            no_wrap=head.kind == "row",
            overflow="fold",
            max_width=_LABEL if head.kind == "label" else None,
            style="dim" if head.role in PAPERS and head.kind == "value" else "",
        )
    for line in grid.lines:
        if not (line.row.outcomes or any(line.cells[i].text for i in keep if grid.heads[i].kind == "value")):
            continue  # a cited result whose numbers have no printed column
        if line.opens_group and made.row_count:
            made.add_row()
        made.add_row(*(_cell(line, grid.heads[i], line.cells[i], shown.table) for i in keep))
    return made


def _cell(line: Line, head: Head, cell: Cell, table: Table) -> Text:
    row = line.row_under(head)
    measure = row.measures.get(head.metric) if row is not None and head.kind == "value" else None
    return Text(plain(cell.text) + plain(cell.mark), style=_style(head, cell, row, measure, table))


def _style(head: Head, cell: Cell, row: Row | None, measure: Measure | None, table: Table) -> str:
    if head.kind == "row":
        return "bold" if row is not None and row.key == table.base_of(row) else ""
    if measure is None:
        return ""
    if head.role == "ours" and measure.missing:
        return "red" if {"failed", "diverged", "damaged"} & {*measure.lacking} else "yellow"
    if cell.emphasis:
        return "bold"
    if head.role in CHANGES and measure.change:
        better = next(column for column in table.columns if column.key == head.metric).better
        if not better:
            return ""
        colour = "green" if (measure.change < 0) == (better == "lower") else "red"
        tested = measure.test is not None and not measure.test.marked
        return f"dim {colour}" if tested else colour
    return ""
