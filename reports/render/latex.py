r"""LaTeX, laid out as Table 3 of the paper: rules between groups only, (A) before a group's first row, a label across
the settings that it stands for. It is a `table` environment; the document needs \usepackage{booktabs}, nothing else.
"""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from reports.render.cells import Cell, Grid, Head, Line, labels_span, settings_of
from reports.render.grid import lay_out
from reports.render.latex_text import escape, foreign
from reports.render.numbers import group_name
from reports.render.text import plain
from reports.results.table import Table

MADE_BY = "made with: ablations report "  # `ablations verify` reads it

# The paper's heads of settings, over two lines; other heads are escaped text.
HEADS = {
    "N": ("", "$N$"),
    "d_model": ("", r"$d_{\mathrm{model}}$"),
    "d_ff": ("", r"$d_{\mathrm{ff}}$"),
    "h": ("", "$h$"),
    "d_k": ("", "$d_k$"),
    "d_v": ("", "$d_v$"),
    "P_drop": ("", "$P_{drop}$"),
    "ε_ls": ("", r"$\epsilon_{ls}$"),
    "train steps": ("train", "steps"),
}

# Sizes for a text of usual width; what is wider still reaches evenly into both margins.
SMALL = (r"\scriptsize", r"\setlength{\tabcolsep}{3pt}")
SMALLEST = (r"\tiny", r"\setlength{\tabcolsep}{2pt}")


def render(table: Table) -> str:
    """A `table` environment with its caption and notes."""
    grid = _as_in_the_paper(lay_out(table))
    heads = list(_heads(grid))
    parts = [
        *_preface(table, grid),
        r"\begin{table}[t]",
        r"\centering",
        *([rf"\caption{{{escape(table.title)}}}", r"\smallskip"] if table.title else []),
        *(SMALLEST if len(grid.heads) > 16 else SMALL),
        r"\makebox[\linewidth]{%",
        rf"\begin{{tabular}}{{@{{}}{_alignment(grid)}@{{}}}}",
        r"\toprule",
        *heads,
        *_body(grid),
        r"\bottomrule",
        r"\end{tabular}}",
        *_notes(table),
        r"\end{table}",
    ]
    return "\n".join(parts) + "\n"


def _as_in_the_paper(grid: Grid) -> Grid:
    """One name column: (A), or the key of a row without a group; the label where there are no settings to span.

    A pivoted table has the labels as names.
    """
    if grid.pivoted:
        keep = [i for i, head in enumerate(grid.heads) if head.kind != "row"]
        kept = (replace(line, cells=tuple(line.cells[i] for i in keep)) for line in grid.lines)
        return replace(grid, heads=tuple(grid.heads[i] for i in keep), lines=tuple(kept))
    names = [_name(line) for line in grid.lines]
    dropped = {"group", "row"} | ({"label"} if labels_span(grid) else set())
    keep = [i for i, head in enumerate(grid.heads) if head.kind not in dropped]
    lines = tuple(
        Line(line.rows, line.opens_group, (name, *(line.cells[i] for i in keep)))
        for name, line in zip(names, grid.lines, strict=True)
    )
    return Grid((Head("name", "", kind="group"), *(grid.heads[i] for i in keep)), lines)


def _name(line: Line) -> Cell:
    group = line.row.group
    if not group:
        return Cell(line.row.key)
    return Cell(group_name(group)) if line.opens_group else Cell()


def _alignment(grid: Grid) -> str:
    kinds = {"group": "l", "label": "l", "setting": "c"}
    return "".join(kinds.get(head.kind, "r") for head in grid.heads)


def _heads(grid: Grid) -> Iterator[str]:
    """The head's two lines: a metric spans its columns, with a rule below."""
    top: list[str] = []
    bottom: list[str] = []
    rules = []
    for (_, spans), group in itertools.groupby(grid.heads, key=lambda head: (head.spanned_by, bool(head.sub))):
        heads = list(group)
        if spans and len(heads) > 1:
            rules.append(rf"\cmidrule(lr){{{len(bottom) + 1}-{len(bottom) + len(heads)}}}")
            top.append(rf"\multicolumn{{{len(heads)}}}{{c}}{{{escape(heads[0].top)}}}")
            bottom += [escape(head.sub.replace("paper Δ", "Δ")) for head in heads]
        else:
            lines = [_two_lines(head) for head in heads]
            top += [first for first, _ in lines]
            bottom += [second for _, second in lines]
    yield " & ".join(top) + r" \\"
    yield from ["".join(rules)] if rules else []
    yield " & ".join(bottom) + r" \\"


def _two_lines(head: Head) -> tuple[str, str]:
    if head.kind == "setting" and head.top in HEADS:
        return HEADS[head.top]
    first, _, second = head.top.partition(" ")
    return escape(first), escape(second)


def _body(grid: Grid) -> Iterator[str]:
    for line in grid.lines:
        if line.opens_group:
            yield r"\midrule"
        yield " & ".join(_cells(grid, line)) + r" \\"


def _cells(grid: Grid, line: Line) -> Iterator[str]:
    """A label takes the place of the settings, all blank, that it says in words."""
    unnamed = line.row.group and line.row.group != line.row.key
    text = line.row.label or (line.row.key if unnamed else "")
    own_column = any(head.kind == "label" for head in grid.heads)
    spans = bool(text) and not own_column and not any(cell.text for cell in settings_of(grid, line))
    for kind, pairs in itertools.groupby(zip(grid.heads, line.cells, strict=True), key=lambda pair: pair[0].kind):
        cells = [cell for _, cell in pairs]
        if kind == "setting" and spans:
            yield rf"\multicolumn{{{len(cells)}}}{{c}}{{{escape(text)}}}"
        else:
            yield from (_cell(cell) for cell in cells if cell.span)


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    mark = rf"\rlap{{$^{{{escape(cell.mark)}}}$}}" if cell.mark else ""  # numbers line up without it
    shown = (rf"\textbf{{{text}}}" if cell.emphasis else text) + mark
    return rf"\multicolumn{{{cell.span}}}{{c}}{{{shown}}}" if cell.span > 1 else shown


def _preface(table: Table, grid: Grid) -> list[str]:
    r"""What the document needs; characters that pdfLaTeX's default fonts lack are named by code point."""
    texts = [table.title, *table.warnings, *table.footnotes]
    texts += [head.top for head in grid.heads] + [cell.text for line in grid.lines for cell in line.cells]
    texts += [line.row.label for line in grid.lines]
    lines = [r"% in the preamble: \usepackage{booktabs}"]
    if table.asked:
        lines.insert(0, f"% {MADE_BY}{plain(table.asked)}")
    missing = sorted(set("".join(map(foreign, texts))))
    if missing:
        some = " ".join(f"U+{ord(char):04X}" for char in missing[:8])
        lines.append(f"% compile with XeLaTeX or LuaLaTeX and a font that has {some}{' …' if missing[8:] else ''}")
    return lines


def _notes(table: Table) -> list[str]:
    notes = [rf"\emph{{Warning:}} {escape(text)}\par" for text in table.warnings]
    notes += [rf"{escape(text)}\par" for text in table.footnotes]
    if not notes:
        return []
    return [r"\par\smallskip", r"\begin{minipage}{\linewidth}\scriptsize\raggedright", *notes, r"\end{minipage}"]
