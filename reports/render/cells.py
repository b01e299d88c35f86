"""Column heads and cells of a table as Unicode text, before a format escapes them.

All formats for readers use these heads and cells. printed.py chooses the columns and arranges the cells in lines.
"""

import itertools
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports.results.table import Measure, Row


@dataclass(frozen=True)
class Head:
    """The head of a column. `top` may span several columns, such as those of a metric; `sub` distinguishes them."""

    key: str  # a setting's dotted name, or "metric.role"
    top: str
    sub: str = ""
    kind: str = "value"  # group, row, setting, label or value
    group: str = ""  # the group whose rows the column shows; "" for all rows (reports/render/pivot.py)
    one_line: str = ""  # the head for formats with one line of heads; `top` or `sub` if unset
    spans: str = ""  # key that is equal for all columns under one spanning head; `metric` if unset

    @property
    def metric(self) -> str:
        """The first part of the key: "bleu" for "bleu.change"; "" if the key has one part."""
        return self.key.rpartition(".")[0]

    @property
    def role(self) -> str:
        """The last part of the key: "change" for "bleu.change"."""
        return self.key.rpartition(".")[2]

    @property
    def spanned_by(self) -> str:
        """The key of the spanning head. All columns under one spanning head have the same key."""
        return self.spans or self.metric

    @property
    def sub_alone(self) -> str:
        """The sub-head as printed below a spanning head."""
        return self.sub.replace("paper Δ", "Δ")

    @property
    def alone(self) -> str:
        """The head as one line of text."""
        return self.one_line or (self.top if self.sub in ("", "ours") else self.sub)


def spanned(heads: Sequence[Head]) -> Iterator[tuple[bool, list[Head]]]:
    """Yield groups of neighbouring heads for two lines of heads, and whether `top` spans the group."""
    for (_, subs), group in itertools.groupby(heads, key=lambda head: (head.spanned_by, bool(head.sub))):
        of = list(group)
        yield bool(subs) and len(of) > 1, of


@dataclass(frozen=True)
class Cell:
    text: str = ""
    emphasis: bool = False
    mark: str = ""  # superscript after the text
    provisional: bool = False  # whether the number is a mean or change over the finished seeds only
    span: int = 1  # number of columns that the cell occupies; 0 if the cell to its left occupies this column


@dataclass(frozen=True)
class Line:
    rows: tuple[Row, ...]  # a pivoted table has one row per group
    opens_group: bool  # whether the line is the first of a group
    cells: tuple[Cell, ...]  # one cell per head

    @property
    def row(self) -> Row:
        """The first row of the line."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """The keys of the rows, separated by commas."""
        return ", ".join(dict.fromkeys(row.key for row in self.rows))

    def row_under(self, head: Head) -> Row | None:
        """Return the row whose number is printed in a column; None if the line has no number there."""
        return next((row for row in self.rows if head.group in ("", row.group)), None)


@dataclass(frozen=True)
class Grid:
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    pivoted: bool = False


def settings_of(grid: Grid, line: Line) -> list[Cell]:
    """Return the cells of a line that show settings."""
    return [cell for head, cell in zip(grid.heads, line.cells, strict=True) if head.kind == "setting"]


def labels_span(grid: Grid) -> bool:
    """Return whether labels can be printed across the setting columns.

    This is possible if all settings of labelled rows are blank.
    """
    labelled = [settings_of(grid, line) for line in grid.lines if line.row.label]
    return not grid.pivoted and bool(labelled and labelled[0]) and not any(c.text for cells in labelled for c in cells)


def group_name(group: str) -> str:
    """Return the printed name of a group: short names in brackets, as (A) in the paper, and longer names unchanged."""
    return f"({group})" if 0 < len(group) <= 2 else group


def gap(measure: Measure) -> str:
    """Return the text of a cell without a number: "–", "– (failed)", "– (2/3, 1 running)"."""
    reasons = Counter(reason for reason in measure.lacking if reason)
    if measure.requested == 1:
        return f"– ({next(iter(reasons))})" if reasons else "–"
    parts = [f"{len(measure.values)}/{measure.requested}", *(f"{n} {reason}" for reason, n in reasons.items())]
    return f"– ({', '.join(parts)})"


_REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_BREAKING = {"Cc", "Zl", "Zp"}


def plain(text: object) -> str:
    """Return text as one harmless line, without leading and trailing spaces.

    Control characters and line breaks become spaces, direction marks are removed, and lone surrogates become U+FFFD.
    """
    text = str(text)
    return (text if text.isascii() and text.isprintable() else "".join(map(_harmless, text))).strip()


def _harmless(char: str) -> str:
    if char in _REORDERING:
        return ""
    category = unicodedata.category(char)
    if category in _BREAKING:
        return " "
    return "\ufffd" if category == "Cs" else char
