"""The format Markdown: a pipe table with aligned columns, and notes below it."""

import re

from rich.cells import cell_len

from experiments.messages import number
from reports.render.cells import Cell, Grid, plain
from reports.render.printed import printed
from reports.render.printed_command import comment
from reports.results.table import Table

# Longest cell that counts for the width of a column. A longer cell makes only its line longer.
MAX_PADDED_WIDTH = 60
_SPECIAL = re.compile(r"[\\`*\[\]>~$]|<(?!\s)|&(?=#?\w+;)|(?<![^\W_])_|_(?![^\W_])")
_ENTITIES = {"<": "&lt;", ">": "&gt;", "&": "&amp;"}
_BLOCK_START = re.compile(r"^(\d*)([-+.)]|=+|#+)(?=\s|$)")  # start of a list or a heading


def render(table: Table) -> str:
    """Return the title, the pipe table, and a list of warnings and notes.

    For a bundle, the text begins with the line about the bundle.
    """
    shown = printed(table, "markdown")
    parts = [as_pipe(shown.grid)]
    if shown.table.title:
        parts.insert(0, f"**{escape(shown.table.title)}**\n")
    if table.bundle:
        parts.insert(0, f"{escape(table.bundle)}\n")
    if shown.warnings or shown.notes:
        lines = [f"- **Warning:** {escape(note)}" for note in shown.warnings]
        parts.append("\n".join([*lines, *(f"- {escape(note)}" for note in shown.notes)]) + "\n")
    parts += [f"<!-- {number(len(shown.left_out), 'more note')}: --notes full -->\n"] if shown.left_out else []
    parts += [f"{line}\n" for line in comment(table)]
    return "\n".join(parts)


def escape(text: str) -> str:
    """Return one line of text, escaped so that Markdown (CommonMark and GitHub) prints it unchanged."""
    text = _SPECIAL.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), plain(text))
    return _BLOCK_START.sub(r"\1\\\2", text)


def in_cell(text: str) -> str:
    """Return text escaped for a cell of a pipe table."""
    return escape(text).replace("|", "\\|")


def as_pipe(grid: Grid) -> str:
    """Return the cells as a pipe table."""
    heads = [in_cell(head.alone) for head in grid.heads]
    lines = [[_cell(cell) for cell in line.cells] for line in grid.lines]
    return pipe(heads, lines, [head.kind in ("group", "row", "label") for head in grid.heads])


def pipe(heads: list[str], lines: list[list[str]], left: list[bool]) -> str:
    """Return a pipe table of escaped cells. left: for each column, whether it is aligned to the left."""
    widths = [
        max(3, *(w for w in map(cell_len, column) if w <= MAX_PADDED_WIDTH), 0)
        for column in zip(heads, *lines, strict=True)
    ]
    rule = ["-" * w if is_left else "-" * (w - 1) + ":" for w, is_left in zip(widths, left, strict=True)]
    return "".join(_line(cells, widths, left) for cells in (heads, rule, *lines))


def _line(cells: list[str], widths: list[int], left: list[bool]) -> str:
    padded = []
    for cell, full, is_left in zip(cells, widths, left, strict=True):
        space = " " * max(0, full - cell_len(cell))
        padded.append(cell + space if is_left else space + cell)
    return "| " + " | ".join(padded) + " |\n"


def _cell(cell: Cell) -> str:
    text, mark = in_cell(cell.text), in_cell(cell.mark)
    if cell.provisional:
        return f"*{text}*"
    return f"**{text}**{mark}" if cell.emphasis else text + mark
