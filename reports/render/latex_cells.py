"""The cells of a LaTeX table (latex_body.py) as text: heads over two lines, labels across settings.

With siunitx, numbers stand in S columns, which align them at the decimal point and the ±; other text is in braces.
"""

import itertools
import re
from collections.abc import Iterator, Sequence

from reports.render.cells import Cell, Head, Line
from reports.render.latex_body import HEADS, NUMBER, Body, spanned_by, sub_head, two_lines
from reports.render.latex_text import escape

_MARK = "{$^{*}$}"
_BREAKS = re.compile(r"(?<=[ _(,=])")  # where the lines of a narrow column may end
_NARROW = 27  # em, of all narrow columns together


def alignment(body: Body, siunitx: bool) -> str:
    """The columns of the tabular."""
    kinds, narrow = {"group": "l", "label": "l", "setting": "c"}, body.narrow
    found = []
    for i, head in enumerate(body.grid.heads):
        if i in narrow:
            found.append(f"p{{{min(14, _NARROW // len(narrow))}em}}")
        elif siunitx and head.kind == "value" and body.format(i):
            found.append(_aligned(body, i))
        else:
            found.append(kinds.get(head.kind, "r"))
    return "".join(found)


def _aligned(body: Body, column: int) -> str:
    options = [f"table-format={body.format(column)}"]
    cells = [line.cells[column] for line in body.grid.lines]
    options += ["separate-uncertainty"] if any("±" in cell.text for cell in cells) else []
    options += ["detect-weight"] if any(cell.emphasis for cell in cells) else []
    options += ["retain-explicit-plus"] if any(cell.text.startswith("+") for cell in cells) else []
    options += [f"table-space-text-post={_MARK}"] if body.marked(column) else []
    return f"S[{', '.join(options)}]"


def heads(body: Body, siunitx: bool) -> Iterator[str]:
    """The head's two lines: a metric spans its columns, with a rule below. Over an S column a head is in braces."""
    top: list[str] = []
    bottom: list[str] = []
    rules = []
    for (_, spans), found in itertools.groupby(body.grid.heads, key=spanned_by):
        of = list(found)
        braced = ["{{{}}}" if siunitx and head.kind == "value" else "{}" for head in of]
        if spans and len(of) > 1:
            rules.append(rf"\cmidrule(lr){{{len(bottom) + 1}-{len(bottom) + len(of)}}}")
            top.append(rf"\multicolumn{{{len(of)}}}{{c}}{{{escape(of[0].top)}}}")
            bottom += [around.format(escape(sub_head(head))) for around, head in zip(braced, of, strict=True)]
        else:
            lines = [_escaped(head) for head in of]
            top += [around.format(first) for around, (first, _) in zip(braced, lines, strict=True)]
            bottom += [around.format(second) for around, (_, second) in zip(braced, lines, strict=True)]
    yield " & ".join(top) + r" \\"
    yield from ["".join(rules)] if rules else []
    yield " & ".join(bottom) + r" \\"


def _escaped(head: Head) -> tuple[str, str]:
    if head.kind == "setting" and head.top in HEADS:
        return HEADS[head.top]
    first, second = two_lines(head)
    return escape(first), escape(second)


def lines(body: Body, siunitx: bool) -> Iterator[str]:
    """The rows, with rules between groups only."""
    numeric = [siunitx and head.kind == "value" and bool(body.format(i)) for i, head in enumerate(body.grid.heads)]
    narrow = body.narrow
    for number, line in enumerate(body.grid.lines):
        if line.opens_group:
            yield r"\midrule"
        yield " & ".join(_cells(body, number, line, narrow, numeric)) + r" \\"


def _cells(body: Body, number: int, line: Line, narrow: Sequence[int], numeric: Sequence[bool]) -> Iterator[str]:
    text = body.spans.get(number)
    for i, cell in enumerate(line.cells):
        if text is not None and i in body.block:
            if i == body.block[0]:
                yield rf"\multicolumn{{{len(body.block)}}}{{c}}{{{_across(text, len(body.block))}}}"
        elif cell.span:
            yield _in_lines(cell.text) if i in narrow else _number(cell) if numeric[i] else _cell(cell)


def _in_lines(text: str) -> str:
    """A cell of a narrow column, whose lines may also end inside a setting: after "(", "," and the like."""
    parts = [escape(part) + (" " if part.endswith(" ") else r"\allowbreak{}") for part in _BREAKS.split(text)]
    return r"\raggedright " + "".join(parts).removesuffix(r"\allowbreak{}") if text else ""


def _across(text: str, columns: int) -> str:
    """A text across columns of settings, over several lines if it is longer than these are wide."""
    em = max(12, 3 * columns)  # a setting's column has some 3 em, and an em some 2 characters
    return escape(text) if len(text) <= 2 * em else rf"\parbox{{{em}em}}{{\centering\strut {escape(text)}\strut}}"


def _cell(cell: Cell) -> str:
    text = escape(cell.text)
    mark = rf"\rlap{{$^{{{escape(cell.mark)}}}$}}" if cell.mark else ""  # numbers line up without it
    face = "textbf" if cell.emphasis else "textit" if cell.provisional else ""
    shown = (rf"\{face}{{{text}}}" if face else text) + mark
    return rf"\multicolumn{{{cell.span}}}{{c}}{{{shown}}}" if cell.span > 1 else shown


def _number(cell: Cell) -> str:
    """For an S column: a number as siunitx reads it, other text in braces."""
    if cell.span > 1 or not cell.text or not NUMBER.fullmatch(cell.text):
        return _cell(cell) if cell.span > 1 or not cell.text else f"{{{_cell(cell)}}}"
    text = cell.text.replace("−", "-").replace("±", "+-")
    mark = f"{{$^{{{escape(cell.mark)}}}$}}" if cell.mark else ""
    return (r"\bfseries " if cell.emphasis else "") + text + mark
