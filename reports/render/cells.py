"""What a printed table consists of, before any format's escaping: heads, cells, lines, numbers and clean text."""

import itertools
import math
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reports.results.table import Measure, Row


@dataclass(frozen=True)
class Head:
    """A column's head. `top` may span several columns (a metric); `sub` tells those apart."""

    key: str  # a setting's dotted name, or "metric.role"
    top: str
    sub: str = ""
    kind: str = "value"  # group, row, setting, label, value
    group: str = ""  # of the rows that the column shows; "" for all (reports/render/grid.py)
    one_line: str = ""  # where heads have one line; `top` or `sub` if unset
    spans: str = ""  # replaces `metric` as what `top` names

    @property
    def metric(self) -> str:
        """ "bleu" of "bleu.change"; "" of a column of one word."""
        return self.key.rpartition(".")[0]

    @property
    def role(self) -> str:
        """ "change" of "bleu.change"."""
        return self.key.rpartition(".")[2]

    @property
    def spanned_by(self) -> str:
        """What `top` names: equal for the columns that it spans."""
        return self.spans or self.metric

    @property
    def sub_alone(self) -> str:
        """The sub-head below `top`, which names the metric already."""
        return self.sub.replace("paper Δ", "Δ")

    @property
    def alone(self) -> str:
        """The head in one line."""
        return self.one_line or (self.top if self.sub in ("", "ours") else self.sub)


def spanned(heads: Sequence[Head]) -> Iterator[tuple[bool, list[Head]]]:
    """Neighbouring heads that `top` may span, and whether it does: two lines of heads, of any format."""
    for (_, subs), group in itertools.groupby(heads, key=lambda head: (head.spanned_by, bool(head.sub))):
        of = list(group)
        yield bool(subs) and len(of) > 1, of


@dataclass(frozen=True)
class Cell:
    text: str = ""
    emphasis: bool = False
    mark: str = ""  # printed raised, after the text
    provisional: bool = False  # a mean or change over the seeds that are there
    span: int = 1  # columns that the cell takes; 0: taken by the one to its left


@dataclass(frozen=True)
class Line:
    rows: tuple[Row, ...]  # several in a pivoted table: one of each group
    opens_group: bool
    cells: tuple[Cell, ...]  # one per head

    @property
    def row(self) -> Row:
        """The first of the rows."""
        return self.rows[0]

    @property
    def name(self) -> str:
        """The rows' keys."""
        return ", ".join(dict.fromkeys(row.key for row in self.rows))

    def row_under(self, head: Head) -> Row | None:
        """The row whose number stands in a column; None if the line has none there."""
        return next((row for row in self.rows if head.group in ("", row.group)), None)


@dataclass(frozen=True)
class Grid:
    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    pivoted: bool = False


def settings_of(grid: Grid, line: Line) -> list[Cell]:
    """The cells of a line that show settings."""
    return [cell for head, cell in zip(grid.heads, line.cells, strict=True) if head.kind == "setting"]


def labels_span(grid: Grid) -> bool:
    """A label may stand across the settings, as in the paper: wherever there is one, they are blank."""
    labelled = [settings_of(grid, line) for line in grid.lines if line.row.label]
    return not grid.pivoted and bool(labelled and labelled[0]) and not any(c.text for cells in labelled for c in cells)


# --- Numbers, gaps and groups as the cells of a table print them


def group_name(group: str) -> str:
    """(A), as in the paper; longer names stand as they are."""
    return f"({group})" if 0 < len(group) <= 2 else group


def fixed(value: float | None, digits: int, signed: bool = False) -> str:
    """A number with `digits` after the point and a true minus; huge ones in powers of ten; no negative zero.

    "" for None.
    """
    if value is None:
        return ""
    if abs(value) >= 1e6:
        text = f"{value:{'+' if signed else ''}.1e}"
    else:
        text = f"{value:{'+' if signed else ''}.{digits}f}"
        if float(text) == 0:
            text = text.lstrip("+-")
    return text.replace("-", "−")


def gap(measure: Measure) -> str:
    """A cell without a number: "–", "– (failed)", "– (2/3, 1 running)"."""
    reasons = Counter(reason for reason in measure.lacking if reason)
    if measure.requested == 1:
        return f"– ({next(iter(reasons))})" if reasons else "–"
    parts = [f"{len(measure.values)}/{measure.requested}", *(f"{n} {reason}" for reason, n in reasons.items())]
    return f"– ({', '.join(parts)})"


def decimals(values: Sequence[float | None]) -> int:
    """Digits after the point that the most precise of the values was given with."""
    texts = [repr(float(value)) for value in values if value is not None]
    return max((len(text.rpartition(".")[2]) for text in texts if not text.endswith(".0")), default=0)


def power(value: float | None) -> str:
    """ "9.4e17"."""
    if value is None or not math.isfinite(value):
        return ""
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}" if value else "0"


# --- Text on its way into a document: one line, without characters that steer a terminal or reorder what is read


_REORDERING = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_BREAKING = {"Cc", "Zl", "Zp"}


def plain(text: object) -> str:
    """Controls and line breaks become spaces, direction marks go, lone surrogates become U+FFFD; then stripped."""
    text = str(text)
    return (text if text.isascii() and text.isprintable() else "".join(map(_harmless, text))).strip()


def _harmless(char: str) -> str:
    if char in _REORDERING:
        return ""
    category = unicodedata.category(char)
    if category in _BREAKING:
        return " "
    return "\ufffd" if category == "Cs" else char
