"""The table as a piece of HTML for a notebook's cell: the printed columns and notes, no script, no style of its own
beyond attributes, so that it also shows where a notebook is only read (GitHub, nbconvert)."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from reports.render.cells import Cell, Grid, Head, Line
from reports.render.html_sections import escape
from reports.render.printed import printed
from reports.results.table import Table

_LEFT = ("group", "row", "label")


def fragment(table: Table) -> str:
    """As `ablations report` prints it for a browser, without the page around it."""
    shown = printed(table, "html")
    title = shown.table.title or shown.table.name
    notes = [f"<b>Warning:</b> {escape(text)}" for text in shown.warnings] + [escape(text) for text in shown.notes]
    below = f"<ul>{''.join(f'<li>{note}</li>' for note in notes)}</ul>" if notes else ""
    folded = f"<details><summary>Notes</summary>{below}</details>" if below and not shown.warnings else below
    lines = "".join(f"<tr>{''.join(_cells(shown.grid, line))}</tr>" for line in shown.grid.lines)
    head = "".join(f"<tr>{''.join(line)}</tr>" for line in _heads(shown.grid.heads))
    caption = f"<caption>{escape(title)}</caption>"
    first = f"<p><b>{escape(table.bundle)}</b></p>" if table.bundle else ""
    return f"<div>{first}<table>{caption}<thead>{head}</thead><tbody>{lines}</tbody></table>{folded}</div>"


def _heads(heads: Sequence[Head]) -> Iterator[list[str]]:
    """Two lines: what spans several columns, and these."""
    top: list[str] = []
    below: list[str] = []
    for (_, spans), members in groupby(heads, key=lambda head: (head.spanned_by, bool(head.sub))):
        group = list(members)
        if spans and len(group) > 1:
            top.append(f'<th colspan="{len(group)}" style="text-align: center">{escape(group[0].top)}</th>')
            below += [f"<th>{escape(head.sub)}</th>" for head in group]
        else:
            top += [f'<th rowspan="2"{_side(head)}>{escape(head.top)}</th>' for head in group]
    yield top
    yield below


def _cells(grid: Grid, line: Line) -> Iterator[str]:
    rule = "border-top: 1px solid currentColor; " if line.opens_group and line is not grid.lines[0] else ""
    for head, cell in zip(grid.heads, line.cells, strict=True):
        if cell.span:
            wide = f' colspan="{cell.span}"' if cell.span > 1 else ""
            yield f"<td{wide}{_side(head, rule)}>{_text(cell)}</td>"


def _side(head: Head, rule: str = "") -> str:
    return f' style="{rule}text-align: {"left" if head.kind in _LEFT else "right"}"'


def _text(cell: Cell) -> str:
    text = escape(cell.text)
    text = f"<b>{text}</b>" if cell.emphasis else f"<i>{text}</i>" if cell.provisional else text
    return text + (f"<sup>{escape(cell.mark)}</sup>" if cell.mark else "")
