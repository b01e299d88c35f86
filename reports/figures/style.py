"""Style and output of all figures. The same numbers give byte-identical files.

matplotlib draws PDF files for papers and SVG for the HTML page from one description. matplotlib needs no network and no
JavaScript, and it is installed in any case, because MLflow depends on it. Labels are never interpreted as mathematical
markup.
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
HIGHER, LOWER = "better →", "← better"  # parts of axis labels; on a vertical axis, the rotated arrows point up and down
LONGEST = 28  # maximum number of characters of a label


@dataclass(frozen=True)
class Size:
    """The dimensions of a figure for the place where it is shown."""

    width: float  # inches
    font: float  # points
    across: int  # maximum number of panels side by side, one metric per panel
    groups: int  # maximum number of panels side by side if each has a legend
    legend: int  # maximum number of columns of a legend

    @property
    def scale(self) -> float:
        return self.font / PAPER.font


PAPER = Size(6.4, 7.5, 3, 2, 7)
WIDE, NARROW = Size(11.0, 9.5, 3, 3, 8), Size(3.9, 9.5, 1, 1, 3)  # for the HTML page on a desktop and on a phone
PANEL_HEIGHT = 2.1  # inches on paper

_STYLE = Path(__file__).with_name("figures.mplstyle")
_NO_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

# Fonts for characters that DejaVu Sans lacks, if installed. A character that no font has is drawn as a box.
OTHERS = ("Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "Baekmuk Dotum", "UnDotum", "Unifont")


@contextmanager
def canvas(
    size: Size, rows: int = 1, columns: int = 1, height: float = PANEL_HEIGHT, **grid: Any
) -> Iterator[tuple["Figure", Any]]:
    """Yield a figure and its rows × columns panels as `axes[r][c]`. height: inches per row of panels on paper."""
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
    """Return the content of the figure's file. name: the salt that makes ids in SVG files differ between figures."""
    import matplotlib

    stream = io.BytesIO()
    ours = matplotlib.rc_params_from_file(_STYLE, use_default_template=False)
    with matplotlib.rc_context({**ours, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(stream, format=format_, metadata=_NO_DATE[format_])
    return stream.getvalue()


def logarithmic(axis: Any) -> None:
    """Label a logarithmic axis with plain numbers. An axis that spans less than a factor of 100 gets more ticks."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator, ScalarFormatter

    low, high = sorted(axis.get_view_interval())
    narrow = low > 0 and high / low < 100
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}".replace("e+0", "e").replace("e+", "e")))
    axis.set_minor_formatter(NullFormatter())
    if low > 0 and high / low < 5:
        axis.set_major_locator(MaxNLocator(5))
        axis.set_minor_locator(NullLocator())
        if high < 1e4:  # print enough digits to distinguish the ticks
            axis.set_major_formatter(ScalarFormatter(useOffset=False))


def toward(words: str, column: Column) -> str:
    """Return an axis label with an arrow to the side where values are better."""
    if not column.better:
        return words
    return f"{LOWER}   {words}" if column.better == "lower" else f"{words}   {HIGHER}"


def label(text: str) -> str:
    """Return a name shortened to one line of at most LONGEST characters."""
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def colours(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Return a colour and a marker for each name, in order. Names with the same colour have different markers."""
    return {
        name: (COLOURS[i % len(COLOURS)], MARKERS[(i + i // len(COLOURS)) % len(MARKERS)])
        for i, name in enumerate(dict.fromkeys(names))
    }
