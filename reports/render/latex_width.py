"""How wide a table comes out in LaTeX, estimated from Computer Modern's widths, and the size that fits a page.

The estimate need not be exact: text narrower than the table scales it down (see latex.py). It must not be far off, so
that a table is printed as large as it can be and not smaller.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from reports.render.text import plain, width

# cmr10 at 10 pt, measured: one character of each class.
_WIDTHS = {
    2.8: "ijl.,:;!'|", 3.3: " -fIrst()J", 3.9: "\"[]", 4.5: "cez?", 5.0: "ago0123456789/†‡§–", 5.4: "bdhknpquvxyαβτσε",
    6.5: "FELZ", 7.1: "wBPRSC", 7.7: "ADGHKNOQTUVXY+=−±×<>√Δ", 8.6: "mM", 10.3: "W—%&@",
}  # fmt: skip
_OF = {char: points for points, chars in _WIDTHS.items() for char in chars}
_OTHER, _WIDE = 6.0, 10.5  # accented letters and signs; Chinese, Japanese, Korean
BOLD = 1.15

# Text widths in pt: a page of one column (article, 10 pt), both columns of a page of two (ACL, the narrowest of the
# usual classes), and one of them. Classes with 11 or 12 pt are wider by less than their fonts: hence the margin.
ONE_COLUMN, BOTH_COLUMNS, HALF = 345.0, 455.0, 215.0
_MARGIN = 0.95
# (command, width of its text in 10 pt's, space on each side of a column in pt), the most legible first.
SIZES = ((r"\small", 0.925, 6), (r"\small", 0.925, 4), (r"\footnotesize", 0.85, 4), (r"\footnotesize", 0.85, 3))
_LAST = (r"\scriptsize", 0.80, 3)  # less space, and the marks after numbers touch the next column
_NARROWEST = 50.0  # of a column of words that is broken into lines, in pt


def text_width(text: str) -> float:
    """Width of a text in pt, at 10 pt."""
    return sum(_WIDE if width(char) == 2 else _OF.get(char, _OTHER) for char in plain(text))


@dataclass(frozen=True)
class Fit:
    """A size, and the columns of words that are broken into lines (column → width in pt)."""

    size: str
    space: int  # \tabcolsep, in pt
    total: float  # the table's width in pt
    broken: Mapping[int, float] = field(default_factory=dict)


def fit(columns: Sequence[float], words: Mapping[int, float], wide: bool) -> Fit:
    """The first size in which columns of these widths (at 10 pt) fit the page; `words`: columns that may break, with
    the least width of each.

    Lines are broken before text becomes smaller than \\footnotesize.
    """
    page = _MARGIN * (BOTH_COLUMNS if wide else ONE_COLUMN)
    for size, factor, space in SIZES:
        total = _total(columns, factor, space)
        if total <= page:
            return Fit(size, space, total)
    for size, factor, space in (SIZES[-1], _LAST):
        broken = _broken(columns, words, factor, page - _total(columns, factor, space))
        lines = [broken.get(i, factor * points) for i, points in enumerate(columns)]
        total = _total(lines, 1.0, space)
        if total <= page:
            return Fit(size, space, total, broken)
    return Fit(size, space, total, broken)


def _total(columns: Sequence[float], factor: float, space: int) -> float:
    return factor * sum(columns) + 2 * space * (len(columns) - 1)


def _broken(columns: Sequence[float], words: Mapping[int, float], factor: float, room: float) -> dict[int, float]:
    """Widths for the widest columns of words, so that the table needs `room` (negative) less; none below its least."""
    widths = {i: factor * columns[i] for i in words}
    least = {i: max(_NARROWEST, factor * points * 1.05) for i, points in words.items()}
    missing = -room
    while missing > 0.1:
        widest = max((i for i in widths if widths[i] > least[i]), key=lambda i: widths[i], default=None)
        if widest is None:
            break
        step = min(missing, widths[widest] - least[widest], 10.0)
        widths[widest] -= step
        missing -= step
    return {i: points for i, points in widths.items() if points < factor * columns[i]}
