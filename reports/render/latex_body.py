"""What a LaTeX table has: one column of names, settings and values; texts across settings; columns of long words."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from reports.render.cells import Cell, Grid, Head, Line
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
NUMBER = re.compile(r"([+−]?)(\d+)(?:\.(\d+))?(?: ± (\d+)(?:\.(\d+))?)?(?:e(\d+))?")
LONG = 24  # characters of a text; columns with longer ones are narrow, and their lines broken


@dataclass(frozen=True)
class Body:
    """The lines of a table as LaTeX prints them: `spans` holds the texts that stand across the first settings."""

    grid: Grid  # one column of names first
    spans: dict[int, str]  # line → text
    block: range  # the columns that these span

    @property
    def narrow(self) -> list[int]:
        """Columns of long words, whose lines are broken."""
        found = []
        for i, head in enumerate(self.grid.heads):
            texts = [cell.text for cell in self._cells(i)]
            words = head.kind == "label" or (head.kind == "setting" and " " in "".join(texts))
            if words and max(map(len, texts)) > LONG:
                found.append(i)
        return found

    def _cells(self, column: int) -> list[Cell]:
        return [line.cells[column] for line in self.grid.lines]

    def format(self, column: int) -> str:
        """siunitx's table-format of a column; "" if nothing in it is a number."""
        found = [m for cell in self._cells(column) if cell.span == 1 and (m := NUMBER.fullmatch(cell.text))]
        if not found:
            return ""
        before, after = (max((len(m[i] or "") for m in found), default=0) for i in (2, 3))
        text = f"{'+' if any(m[1] for m in found) else ''}{before}.{after}"
        if spread := [m for m in found if m[4]]:
            text += f"({max(len(((m[4] or '') + (m[5] or '')).lstrip('0')) or 1 for m in spread)})"
        powers = [len(m[6]) for m in found if m[6]]
        return text + (f"e{max(powers)}" if powers else "")

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


def sub_head(head: Head) -> str:
    return head.sub.replace("paper Δ", "Δ")


def spanned_by(head: Head) -> tuple[str, bool]:
    return head.spanned_by, bool(head.sub)


def two_lines(head: Head) -> tuple[str, str]:
    """A head over two lines, split where the longer one is shortest; one word stands below."""
    words = head.top.split(" ")
    splits = [(" ".join(words[:i]), " ".join(words[i:])) for i in range(len(words))]
    return min(splits, key=lambda pair: max(map(len, pair)))
