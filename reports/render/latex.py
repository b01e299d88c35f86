"""The format LaTeX: a `table` environment in the layout of Table 3 of the paper.

Rules are printed only between groups. The name of a group, such as (A), is printed only in its first row. A label is
printed across the setting columns. Columns and notes that are not printed follow in comments. If the table is wider
than the text, \\resizebox scales it down, so that the table never covers the page's next column.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reports.render.cells import Cell, Grid, Head, Line, group_name, plain, spanned
from reports.render.latex_text import escape, unprintable
from reports.render.markdown import as_pipe
from reports.render.printed import Printed, printed
from reports.render.printed_command import MADE_BY
from reports.results.table import Table

_SCALED = r"\resizebox{\ifdim\width>\linewidth \linewidth\else\width\fi}{!}{%"


def render(table: Table) -> str:
    """Return a `table` environment with its caption, label and notes."""
    shown = printed(table, "latex")
    body = body_of(shown.grid)
    environment = "table*" if shown.choices.wide else "table"
    below, after = _notes(shown)
    parts = [
        *_preface(shown),
        rf"\begin{{{environment}}}[t]",
        r"\centering",
        *_caption(shown),
        *([rf"{{\scriptsize {escape(table.bundle)}\par}}\smallskip"] if table.bundle else []),
        r"\small",
        r"\setlength{\tabcolsep}{4pt}",
        _SCALED,
        rf"\begin{{tabular}}{{@{{}}{alignment(body)}@{{}}}}",
        r"\toprule",
        *heads(body),
        *lines(body),
        r"\bottomrule",
        r"\end{tabular}}",
        *below,
        rf"\end{{{environment}}}",
        *after,
        *_comments(shown),
    ]
    return "\n".join(parts) + "\n"


def _caption(shown: Printed) -> Iterator[str]:
    label = _label(shown)
    if shown.table.title:
        yield rf"\caption{{{escape(shown.table.title)}}}"
    if label:
        yield rf"\label{{{label}}}"
    if shown.table.title:
        yield r"\smallskip"


def _label(shown: Printed) -> str:
    """Return the label; "" if the table has no caption, because LaTeX numbers only tables with a caption."""
    label = f"tab:{shown.table.spec.name}" if shown.choices.label is None else shown.choices.label
    return label if shown.table.title else ""


def _preface(shown: Printed) -> Iterator[str]:
    r"""Yield comments before the table: the preamble that it needs, and characters that pdfLaTeX's fonts lack."""
    table, grid = shown.table, shown.grid
    texts = [table.title, *shown.warnings, *shown.notes]
    texts += [head.top for head in grid.heads] + [cell.text for line in grid.lines for cell in line.cells]
    texts += [line.row.label for line in grid.lines]
    if table.bundle:
        yield f"% {plain(table.bundle)}"
    if table.asked:
        yield f"% {MADE_BY}{plain(table.asked)}"
    yield r"% in the preamble: \usepackage{booktabs,graphicx}"
    wider = "" if shown.choices.wide else "--wide prints it across both columns of a page, "
    yield f"% Where the text is narrower, the table is scaled down: {wider}--columns and --hide leave columns out."
    missing = sorted(set("".join(map(unprintable, texts))))
    if missing:
        some = " ".join(f"U+{ord(char):04X}" for char in missing[:8])
        yield f"% compile with XeLaTeX or LuaLaTeX and a font that has {some}{' …' if missing[8:] else ''}"


# Maximum number of lines of a float, and number of characters per line of notes. LaTeX cuts off longer floats.
_MOST_LINES, _WIDTH = 50, 90


def _notes(shown: Printed) -> tuple[list[str], list[str]]:
    """Return the lines of warnings and notes to print inside the table's float, and those to print after it.

    One of the two lists is empty: notes that would make the float too long are printed after it.
    """
    texts, face = [*shown.warnings, *shown.notes], r"\scriptsize\raggedright"
    if not texts:
        return [], []
    notes = [rf"\emph{{Warning:}} {escape(text)}\par" for text in shown.warnings]
    notes += [rf"{escape(text)}\par" for text in shown.notes]
    if len(shown.grid.lines) + sum(1 + len(text) // _WIDTH for text in texts) <= _MOST_LINES:
        return [r"\par\smallskip", rf"\begin{{minipage}}{{\linewidth}}{face}", *notes, r"\end{minipage}"], []
    of = rf"Table~\ref{{{_label(shown)}}}" if _label(shown) else "the table"
    return [], ["", rf"{{{face}\noindent Notes on {of}:\par", *notes, "}", ""]


def _comments(shown: Printed) -> Iterator[str]:
    """Yield comments with the columns and notes that are not printed, for the author."""
    if any(head.kind in ("value", "setting") for head in shown.hidden.heads):
        yield "%"
        yield "% Not printed (--columns, --no-plain and --paper print them):"
        yield from (f"% {line}" for line in as_pipe(shown.hidden).splitlines())
    if shown.left_out:
        yield "%"
        yield "% Notes that are not printed (--notes full prints them):"
        yield from (f"% - {plain(text)}" for text in shown.left_out)


# The two lines of the paper's heads of settings. Other heads are escaped text.
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
LONG = 24  # maximum number of characters of a text on one line; a column with longer texts breaks lines


@dataclass(frozen=True)
class Body:
    """The lines of a LaTeX table, and the texts that are printed across its setting columns."""

    grid: Grid  # the first column has the names of the rows
    spans: dict[int, str]  # number of a line → text across the setting columns
    block: range  # the columns that the texts span

    @property
    def narrow(self) -> list[int]:
        """The columns with long texts. Cells in these columns may have several lines."""
        found = []
        for i, head in enumerate(self.grid.heads):
            texts = [line.cells[i].text for line in self.grid.lines]
            words = head.kind == "label" or (head.kind == "setting" and " " in "".join(texts))
            if words and max(map(len, texts)) > LONG:
                found.append(i)
        return found


def body_of(grid: Grid) -> Body:
    """Return the body of a table. The first column has names: a group such as (A), or the key of a row without a group.

    The label of a row is printed across the blank settings or in a separate column. If a row without a label prints no
    settings, or the same settings as another row of its group, its key is printed instead of the label. In a pivoted
    table, the names are the labels.
    """
    if grid.pivoted:
        return Body(_only(grid, [i for i, head in enumerate(grid.heads) if head.kind != "row"]), {}, range(0))
    keep = [i for i, head in enumerate(grid.heads) if head.kind not in ("group", "row", "label")]
    first = [head.kind for head in grid.heads if head.kind not in ("group", "row", "label")]
    block = range(1, 1 + next((i for i, kind in enumerate(first) if kind != "setting"), len(first)))
    names = [Cell(_name(line)) for line in grid.lines]
    bare = _only(grid, keep)
    cells = [(name, *line.cells) for name, line in zip(names, bare.lines, strict=True)]
    shown = [tuple(of[i].text for i in block) for of in cells]
    alike = Counter((line.row.group, settings) for line, settings in zip(grid.lines, shown, strict=True))
    texts = {
        i: text
        for i, line in enumerate(grid.lines)
        if (text := _row_text(line, alike[line.row.group, shown[i]] > 1 or not any(shown[i])))
    }
    heads = (Head("name", "", kind="group"), *bare.heads)
    if texts and (not block or any("".join(shown[i]) for i in texts)):
        heads = (heads[0], Head("label", "", kind="label"), *heads[1:])
        cells = [(of[0], Cell(texts.get(i, "")), *of[1:]) for i, of in enumerate(cells)]
        texts, block = {}, range(0)
    lines = tuple(replace(line, cells=of) for line, of in zip(grid.lines, cells, strict=True))
    return Body(Grid(heads, lines), texts, block)


def _only(grid: Grid, keep: Sequence[int]) -> Grid:
    lines = (replace(line, cells=tuple(line.cells[i] for i in keep)) for line in grid.lines)
    return replace(grid, heads=tuple(grid.heads[i] for i in keep), lines=tuple(lines))


def _name(line: Line) -> str:
    group = line.row.group
    if not group:
        return line.row.name
    return group_name(group) if line.opens_group else ""


def _row_text(line: Line, unnamed: bool) -> str:
    """Return the label of a row. For a row without a label, return the key if no other column identifies the row.

    In all other cases, return "". unnamed: whether no setting distinguishes the row.
    """
    own = not line.row.group or line.row.group == line.row.key  # the column of names has the key
    return line.row.label or (line.row.name if unnamed and not own else "")


_BREAKS = re.compile(r"(?<=[ _(,=])")  # places where lines of a narrow column may be broken
_NARROW = 27  # width of all narrow columns together, in em


def alignment(body: Body) -> str:
    """Return the column specification of the tabular."""
    kinds, narrow = {"group": "l", "label": "l", "setting": "c"}, body.narrow
    found = []
    for i, head in enumerate(body.grid.heads):
        if i in narrow:
            found.append(f"p{{{min(14, _NARROW // len(narrow))}em}}")
        else:
            found.append(kinds.get(head.kind, "r"))
    return "".join(found)


def heads(body: Body) -> Iterator[str]:
    """Yield the two lines of heads. A metric spans its columns, with a rule below."""
    top: list[str] = []
    bottom: list[str] = []
    rules = []
    for spans, of in spanned(body.grid.heads):
        if spans:
            rules.append(rf"\cmidrule(lr){{{len(bottom) + 1}-{len(bottom) + len(of)}}}")
            top.append(rf"\multicolumn{{{len(of)}}}{{c}}{{{escape(of[0].top)}}}")
            bottom += [escape(head.sub_alone) for head in of]
        else:
            lines = [_escaped(head) for head in of]
            top += [first for first, _ in lines]
            bottom += [second for _, second in lines]
    yield " & ".join(top) + r" \\"
    yield from ["".join(rules)] if rules else []
    yield " & ".join(bottom) + r" \\"


def _escaped(head: Head) -> tuple[str, str]:
    """Return the two escaped lines of a head, split so that the longer line is as short as possible.

    A single word is on the second line.
    """
    if head.kind == "setting" and head.top in HEADS:
        return HEADS[head.top]
    words = head.top.split(" ")
    splits = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(len(words))]
    first, second = min(splits, key=lambda pair: max(map(len, pair)))
    return escape(first), escape(second)


def lines(body: Body) -> Iterator[str]:
    """Yield the lines of rows, with rules only between groups."""
    narrow = body.narrow
    for number, line in enumerate(body.grid.lines):
        if line.opens_group:
            yield r"\midrule"
        yield " & ".join(_cells(body, number, line, narrow)) + r" \\"


def _cells(body: Body, number: int, line: Line, narrow: Sequence[int]) -> Iterator[str]:
    text = body.spans.get(number)
    for i, cell in enumerate(line.cells):
        if text is not None and i in body.block:
            if i == body.block[0]:
                yield rf"\multicolumn{{{len(body.block)}}}{{c}}{{{_across(text, len(body.block))}}}"
        elif cell.span:
            yield _in_lines(cell.text) if i in narrow else _cell(cell)


def _in_lines(text: str) -> str:
    """Return a cell of a narrow column. Its lines may also be broken inside a setting, such as after "(" or ","."""
    parts = [escape(part) + (" " if part.endswith(" ") else r"\allowbreak{}") for part in _BREAKS.split(text)]
    return r"\raggedright " + "".join(parts).removesuffix(r"\allowbreak{}") if text else ""


def _across(text: str, columns: int) -> str:
    """Return a text across setting columns, over several lines if the text is wider than the columns."""
    em = max(12, 3 * columns)  # the column of a setting has about 3 em, and one em has about 2 characters
    return escape(text) if len(text) <= 2 * em else rf"\parbox{{{em}em}}{{\centering\strut {escape(text)}\strut}}"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    mark = rf"\rlap{{$^{{{escape(cell.mark)}}}$}}" if cell.mark else ""  # numbers are aligned without the mark
    face = "textbf" if cell.emphasis else "textit" if cell.provisional else ""
    shown = (rf"\{face}{{{text}}}" if face else text) + mark
    return rf"\multicolumn{{{cell.span}}}{{c}}{{{shown}}}" if cell.span > 1 else shown
