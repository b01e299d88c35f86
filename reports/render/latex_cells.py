r"""The cells of a LaTeX table: names as in the paper, heads over two lines, labels across the settings they stand for.

With siunitx, numbers stand in S columns, which align them at the decimal point and the ±; other text is in braces.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from reports.render.cells import Cell, Grid, Head, Line
from reports.render.latex_text import escape
from reports.render.latex_width import BOLD, Fit, text_width
from reports.render.numbers import group_name

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
_NUMBER = re.compile(r"([+−]?)(\d+)(?:\.(\d+))?(?: ± (\d+)(?:\.(\d+))?)?(?:e(\d+))?")
_MARK = "{$^{*}$}"
BREAKS = re.compile(r"(?<=[ _(,=])")  # where the lines of a narrow column may end


@dataclass(frozen=True)
class Body:
    """The lines of a table as LaTeX prints them: `spans` holds the texts that stand across the first settings."""

    grid: Grid  # one column of names first
    spans: dict[int, str]  # line → text
    block: range  # the columns that these span

    @property
    def spanned(self) -> int | None:
        """The last column that the texts span: it is wider where they are."""
        return self.block[-1] if self.spans else None

    @property
    def words(self) -> list[int]:
        """Columns of words, whose lines may be broken."""
        kinds = [(i, head.kind) for i, head in enumerate(self.grid.heads)]
        long = [i for i, kind in kinds if kind == "setting" and any(" " in c.text for c in self._cells(i))]
        spanned = [self.block[-1]] if self.spans and not long else []
        return [i for i, kind in kinds if kind == "label"] + long + spanned

    def _cells(self, column: int) -> list[Cell]:
        return [line.cells[column] for line in self.grid.lines]

    @property
    def under_one_head(self) -> list[list[int]]:
        """Columns that one head spans."""
        found = itertools.groupby(enumerate(self.grid.heads), key=lambda pair: _spanned(pair[1]))
        blocks = [[i for i, _ in heads] for (_, spans), heads in found if spans]
        return [block for block in blocks if len(block) > 1]

    def widths(self, siunitx: bool) -> list[float]:
        """Each column's width in pt at 10 pt."""
        spanned = {i for block in self.under_one_head for i in block}
        found = []
        for i, head in enumerate(self.grid.heads):
            heads = (_sub(head),) if i in spanned else _two_lines(head)
            if head.kind == "setting" and head.top in HEADS:
                heads = (head.top.replace("_", "")[:4],)  # an index is smaller
            cells = [text_width(c.text) * (BOLD if c.emphasis else 1) / max(1, c.span) for c in self._cells(i)]
            aligned = text_width(self.format(i)[1]) if siunitx and head.kind == "value" else 0.0
            found.append(max(*cells, *map(text_width, heads), aligned))
        for block in self.under_one_head:
            found[block[-1]] += max(0.0, text_width(self.grid.heads[block[0]].top) - sum(found[i] for i in block))
        if self.spans:
            widest = max(map(text_width, self.spans.values()))
            found[self.block[-1]] += max(0.0, widest - sum(found[i] for i in self.block) - 8 * (len(self.block) - 1))
        return found

    def least(self) -> dict[int, float]:
        """Columns of words, with the width in pt at 10 pt that their longest part needs where lines are broken."""
        return {
            i: max((text_width(part) for text in self._texts(i) for part in BREAKS.split(text)), default=0.0)
            for i in self.words
        }

    def _texts(self, column: int) -> list[str]:
        return [*(cell.text for cell in self._cells(column)), *(self.spans.values() if column == self.spanned else ())]

    def format(self, column: int) -> tuple[str, str]:
        """siunitx's table-format of a column, and a text that is as wide; ("", "") if nothing in it is a number."""
        found = [m for cell in self._cells(column) if cell.span == 1 and (m := _NUMBER.fullmatch(cell.text))]
        if not found:
            return "", ""
        digits = [max((len(m[i] or "") for m in found), default=0) for i in (2, 3)]
        sign = "+" if any(m[1] for m in found) else ""
        text = f"{sign}{digits[0]}.{digits[1]}"
        shown = f"{sign}{'0' * digits[0]}.{'0' * digits[1]}"
        if spread := [m for m in found if m[4]]:
            text += f"({max(len(((m[4] or '') + (m[5] or '')).lstrip('0')) or 1 for m in spread)})"
            shown += f" ± {'0' * max(len(m[4]) for m in spread)}.{'0' * digits[1]}"
        if powers := [len(m[6]) for m in found if m[6]]:
            text += f"e{max(powers)}"
            shown += f" × 10{'0' * max(powers)}"
        return text, shown + ("*" if self.marked(column) else "")

    def marked(self, column: int) -> bool:
        """Whether a raised mark follows a number."""
        return any(cell.mark for cell in self._cells(column))


def body_of(grid: Grid) -> Body:
    """One column of names: (A), or the key of a row without a group. A row that no setting tells apart has its label
    or its key, across the blank settings or in a column. A pivoted table has labels as names.
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
        if (text := _said(line, alike[line.row.group, shown[i]] > 1 or not any(shown[i])))
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


def _said(line: Line, unnamed: bool) -> str:
    """The row in words: its label; its key where nothing else in its line names it."""
    own = not line.row.group or line.row.group == line.row.key  # the key is its name already
    return line.row.label or (line.row.name if unnamed and not own else "")


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
    for (_, spans), found in itertools.groupby(body.grid.heads, key=_spanned):
        of = list(found)
        braced = ["{{{}}}" if siunitx and head.kind == "value" else "{}" for head in of]
        if spans and len(of) > 1:
            rules.append(rf"\cmidrule(lr){{{len(bottom) + 1}-{len(bottom) + len(of)}}}")
            top.append(rf"\multicolumn{{{len(of)}}}{{c}}{{{escape(of[0].top)}}}")
            bottom += [around.format(escape(_sub(head))) for around, head in zip(braced, of, strict=True)]
        else:
            lines = [_escaped(head) for head in of]
            top += [around.format(first) for around, (first, _) in zip(braced, lines, strict=True)]
            bottom += [around.format(second) for around, (_, second) in zip(braced, lines, strict=True)]
    yield " & ".join(top) + r" \\"
    yield from ["".join(rules)] if rules else []
    yield " & ".join(bottom) + r" \\"


def _sub(head: Head) -> str:
    return head.sub.replace("paper Δ", "Δ")


def _spanned(head: Head) -> tuple[str, bool]:
    return head.spanned_by, bool(head.sub)


def _two_lines(head: Head) -> tuple[str, str]:
    """A head over two lines, split where the longer one is shortest; one word stands below."""
    words = head.top.split(" ")
    splits = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(len(words))]
    return min(splits, key=lambda pair: max(map(text_width, pair)))


def _escaped(head: Head) -> tuple[str, str]:
    if head.kind == "setting" and head.top in HEADS:
        return HEADS[head.top]
    first, second = _two_lines(head)
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
    if cell.span > 1 or not cell.text or not _NUMBER.fullmatch(cell.text):
        return _cell(cell) if cell.span > 1 or not cell.text else f"{{{_cell(cell)}}}"
    text = cell.text.replace("−", "-").replace("±", "+-")
    mark = f"{{$^{{{escape(cell.mark)}}}$}}" if cell.mark else ""
    return (r"\bfseries " if cell.emphasis else "") + text + mark
