"""How every figure looks and is written: for print, in one column's width, the same bytes for the same numbers.

matplotlib draws: it is kept since 2003, makes PDF for papers and SVG for the page from one description, needs no
network or JavaScript, and MLflow brings it along anyway. Labels are never read as its mathematical markup.
"""

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from reports.render.text import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg", "png")
WIDTH, PANEL_HEIGHT = 6.4, 2.1  # inches
# Okabe and Ito's palette, which colour-blind readers can tell apart; black is base's.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "P")
BASE, FAINT = "#000000", "#b8b8b8"
LONGEST = 28  # characters of a label

_RC: dict[Any, Any] = {
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": ["DejaVu Sans"],  # comes with matplotlib: the same letters everywhere
    "font.size": 7.5,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.linewidth": 0.4,
    "grid.color": "#e0e0e0",
    "lines.linewidth": 1.1,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 6.5,
    "pdf.fonttype": 42,  # letters stay letters: publishers refuse type 3
    "svg.fonttype": "path",
    "savefig.dpi": 200,
}
_NO_DATE: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": None},
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
}

# For letters that DejaVu lacks, where one of these is installed; what none has is drawn as a box.
OTHERS = ("Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "Baekmuk Dotum", "UnDotum", "Unifont")


@contextmanager
def canvas(
    rows: int = 1, columns: int = 1, height: float = PANEL_HEIGHT, **grid: Any
) -> Iterator[tuple["Figure", Any]]:
    """A figure of rows × columns panels; `axes[r][c]`."""
    import matplotlib
    from matplotlib.figure import Figure

    fonts = {"font.family": [*_RC["font.family"], *_others()]}
    with matplotlib.rc_context({**matplotlib.rcParamsDefault, "backend": "agg", **_RC, **fonts}):
        figure = Figure(figsize=(WIDTH, height * rows), layout="constrained")
        yield figure, figure.subplots(rows, columns, squeeze=False, **grid)


def _others() -> list[str]:
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return [name for name in OTHERS if name in installed]


def save(figure: "Figure", name: str, format_: str) -> bytes:
    """The figure as a file; `name` keeps the ids of two figures on one page apart."""
    import matplotlib

    stream = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": name, **_RC}), warnings.catch_warnings():
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


def label(text: str) -> str:
    """A name as it fits into a figure: one line, not too long."""
    text = plain(text)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def colours(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """A colour and a marker for each name, in order; they repeat after six, in other pairs."""
    return {
        name: (COLOURS[i % len(COLOURS)], MARKERS[(i + i // len(COLOURS)) % len(MARKERS)])
        for i, name in enumerate(dict.fromkeys(names))
    }
