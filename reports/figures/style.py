"""Style and output of all figures: for print in one column's width, for the page in two; the same bytes for the
same numbers.

matplotlib draws: it is kept since 2003, makes PDF for papers and SVG for the page from one description, needs no
network or JavaScript, and MLflow brings it along anyway. Labels are never read as its mathematical markup.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.tasks.columns import Column
from reports.render import page
from reports.render.cells import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
COLOURS = tuple(on_white for on_white, _ in page.SERIES)
MARKERS = ("o", "s", "^", "D", "v", "P")
BASE, FAINT, EMPTY = page.INK[0], page.FAINT[0], page.PAGE[0]
HIGHER, LOWER = "better →", "← better"  # below an axis; beside one they are turned with it
LONGEST = 28  # characters of a label


@dataclass(frozen=True)
class Size:
    """The dimensions of a figure for the place where it is shown."""

    width: float  # inches
    font: float  # points
    across: int  # panels of one metric each, at most
    groups: int  # panels with a legend beside each, at most
    legend: int  # its columns, at most

    @property
    def scale(self) -> float:
        return self.font / PAPER.font


PAPER = Size(6.4, 7.5, 3, 2, 7)
WIDE, NARROW = Size(11.0, 9.5, 3, 3, 8), Size(3.9, 9.5, 1, 1, 3)  # the page's: on a desk, on a phone
PANEL_HEIGHT = 2.1  # inches on paper

_STYLE = Path(__file__).with_name("figures.mplstyle")
_NO_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

# For letters that DejaVu lacks, where one of these is installed; what none has is drawn as a box.
OTHERS = ("Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "Baekmuk Dotum", "UnDotum", "Unifont")


@contextmanager
def canvas(
    size: Size, rows: int = 1, columns: int = 1, height: float = PANEL_HEIGHT, **grid: Any
) -> Iterator[tuple["Figure", Any]]:
    """A figure of rows × columns panels; `axes[r][c]`. `height`: of a row, in inches on paper."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    own = {
        "font.family": ["DejaVu Sans", *(name for name in OTHERS if name in installed)],
        "grid.color": page.LINE[0],
        "font.size": size.font,
        "lines.linewidth": 1.1 * size.scale,
        "lines.markersize": 4 * size.scale,
    }
    with matplotlib.rc_context({**matplotlib.rc_params_from_file(_STYLE), "backend": "agg", **own}):
        figure = Figure(figsize=(size.width, height * size.scale * rows), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **grid)


def save(figure: "Figure", name: str, format_: str) -> bytes:
    """The figure as a file; `name` keeps the ids of two figures on one page apart."""
    import matplotlib

    stream = io.BytesIO()
    ours = matplotlib.rc_params_from_file(_STYLE, use_default_template=False)
    with matplotlib.rc_context({**ours, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(stream, format=format_, metadata=_NO_DATE[format_])
    return stream.getvalue()


def logarithmic(axis: Any) -> None:
    """Plain numbers on a logarithmic axis; between powers of ten too where it spans less than two."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, ScalarFormatter

    low, high = sorted(axis.get_view_interval())
    narrow = low > 0 and high / low < 100
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}".replace("e+0", "e").replace("e+", "e")))
    axis.set_minor_formatter(NullFormatter())
    if low > 0 and high / low < 5:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
        if high < 1e4:  # as many digits as tell the ticks apart
            axis.set_major_formatter(ScalarFormatter(useOffset=False))


def toward(words: str, column: Column) -> str:
    """An axis's words with the side on which values are better."""
    if not column.better:
        return words
    return f"{LOWER}   {words}" if column.better == "lower" else f"{words}   {HIGHER}"


def label(text: str) -> str:
    """A name as it fits into a figure: one line, not too long."""
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def colours(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each name, in order; colours repeat after twelve, with other markers."""
    return {
        name: (COLOURS[i % len(COLOURS)], MARKERS[(i + i // len(COLOURS)) % len(MARKERS)])
        for i, name in enumerate(dict.fromkeys(names))
    }
