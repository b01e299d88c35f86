"""The cells of a LaTeX table (latex_body.py) as text: heads over two lines, labels across settings.

With siunitx, numbers stand in S columns, which align them at the decimal point and the ±; other text is in braces.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from reports.render.cells import Cell, Head, Line
from reports.render.latex_body import BREAKS, HEADS, NUMBER, Body, spanned_by, sub_head, two_lines
from reports.render.latex_text import escape
from reports.render.latex_width import Fit

_MARK = "{$^{*}$}"


def alignment(body: Body, fitted: Fit, siunitx: bool) -> str:
    """The columns of the tabular."""
    kinds = {"group": "l", "label": "l", "setting": "c"}
    found = []
    for i, head in enumerate(body.grid.heads):
        if i in fitted.broken and i != body.spanned:
            found.append(f"p{{{fitted.broken[i]:.0f}pt}}")
        elif siunitx and head.kind == "value" and body.format(i)[0]:
            found.append(_aligned(body, i))
        else:
            found.append(kinds.get(head.kind, "r"))
    return "".join(found)


def _aligned(body: Body, column: int) -> str:
    options = [f"table-format={body.format(column)[0]}"]
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


def lines(body: Body, fitted: Fit, siunitx: bool) -> Iterator[str]:
    """The rows, with rules between groups only."""
    numeric = [siunitx and head.kind == "value" and bool(body.format(i)[0]) for i, head in enumerate(body.grid.heads)]
    for number, line in enumerate(body.grid.lines):
        if line.opens_group:
            yield r"\midrule"
        yield " & ".join(_cells(body, number, line, fitted, numeric)) + r" \\"


def _cells(body: Body, number: int, line: Line, fitted: Fit, numeric: Sequence[bool]) -> Iterator[str]:
    text = body.spans.get(number)
    for i, cell in enumerate(line.cells):
        if text is not None and i in body.block:
            if i == body.block[0]:
                yield rf"\multicolumn{{{len(body.block)}}}{{c}}{{{_broken(escape(text), body, fitted)}}}"
        elif cell.span:
            shown = _number(cell) if numeric[i] else _cell(cell)
            yield _in_lines(cell.text) if i in fitted.broken and i != body.spanned else shown


def _in_lines(text: str) -> str:
    """A cell of a narrow column, whose lines may also end inside a setting: after "(", "," and the like."""
    parts = [escape(part) + (" " if part.endswith(" ") else r"\allowbreak{}") for part in BREAKS.split(text)]
    return r"\raggedright " + "".join(parts).removesuffix(r"\allowbreak{}") if text else ""


def _broken(text: str, body: Body, fitted: Fit) -> str:
    """A text across columns, over several lines if it is too long for these."""
    last = body.block[-1]
    if last not in fitted.broken:
        return text
    return rf"\parbox{{{max(_room(body, fitted), 60):.0f}pt}}{{\centering\strut {text}\strut}}"


def _room(body: Body, fitted: Fit) -> float:
    widths = replace(body, spans={}).widths(siunitx=False)
    factor = {r"\small": 0.925, r"\footnotesize": 0.85}.get(fitted.size, 0.8)
    others = sum(factor * widths[i] for i in body.block[:-1])
    return others + fitted.broken[body.block[-1]] + 2 * fitted.space * (len(body.block) - 1)


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
