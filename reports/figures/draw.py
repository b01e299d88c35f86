"""The figures of a table, by name, and the figure of a sentence's attention. Imports no torch.

A new figure is a module here and a line below.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.store.layout import Store
from reports.figures import curves, effects, style
from reports.figures.curves import draw_lengths
from reports.figures.effects import draw_cost
from reports.render.html import Drawn
from reports.results.results import counts_in, lengths_in
from reports.results.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Drawing = Callable[[Table, Store, style.Size], "AbstractContextManager[Figure | None]"]
FIGURES: dict[str, tuple[str, Drawing]] = {
    "effects": ("Changes from base", lambda table, store, size: effects.draw_effects(table, size)),
    "cost": ("Quality against cost", lambda table, store, size: draw_cost(table, size)),
    "curves": ("Learning curves", curves.draw_curves),
    "lengths": (
        "Scores by sentence length",
        lambda table, store, size: draw_lengths(table, counts_in(store), lengths_in(store), size),
    ),
}


def draw(table: Table, store: Store, formats: Iterable[str]) -> dict[str, Any]:
    """{"effects.svg": bytes, …} of what can be drawn now; a figure without a number to show is left out."""
    files: dict[str, bytes] = {}
    for name, (_, drawing) in FIGURES.items():
        with drawing(table, store, style.PAPER) as figure:
            for format_ in formats:
                if figure is not None:
                    files[f"{name}.{format_}"] = style.save(figure, name, format_)
    return files


def for_page(table: Table, store: Store) -> dict[str, Drawn]:
    """The same for the HTML page: each for a desk and for a phone, its marks with their values."""
    found: dict[str, Drawn] = {}
    for name, (title, drawing) in FIGURES.items():
        sizes = {"wide": style.WIDE, "narrow": style.NARROW}
        drawn: dict[str, bytes] = {}
        for of, size in sizes.items():
            with drawing(table, store, size) as figure:
                if figure is not None:
                    drawn[of] = style.save(figure, f"{name}-{of}", "svg")
        if drawn:
            found[name] = Drawn(title, **drawn)
    return found


# --- Attention weights as a figure: one panel per head, pieces along both sides


def draw_attention(found: Mapping[str, Any], kind: str, layer: int, heads: Sequence[int], path: Path) -> None:
    """Write the maps of some heads of one layer (numbers from 0) to `path`, PNG, PDF or SVG by its ending."""
    import matplotlib

    matplotlib.use("agg")  # no screen is needed
    from matplotlib import pyplot

    columns, rows = _axes(found, kind)
    across = min(4, len(heads))
    down = -(-len(heads) // across)
    side = max(2.5, 0.22 * max(len(columns), len(rows)))
    figure, panels = pyplot.subplots(down, across, figsize=(side * across, side * down), squeeze=False)
    for panel, head in zip(panels.flat, heads, strict=False):
        panel.imshow(found["maps"][kind][layer][head], vmin=0, vmax=1, cmap="viridis", aspect="auto")
        panel.set_title(f"layer {layer + 1}, head {head + 1}", fontsize=8)
        panel.set_xticks(range(len(columns)), columns, rotation=90, fontsize=6, parse_math=False)
        panel.set_yticks(range(len(rows)), rows, fontsize=6, parse_math=False)
    for panel in list(panels.flat)[len(heads) :]:
        panel.set_axis_off()
    figure.suptitle({"encoder": "encoder", "decoder": "decoder", "cross": "decoder over encoder"}[kind], fontsize=9)
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _axes(found: Mapping[str, Any], kind: str) -> tuple[list[str], list[str]]:
    """Labels of what is attended to, and of what attends."""
    if kind == "encoder":
        return found["source"], found["source"]
    return (found["target"] if kind == "decoder" else found["source"]), found["target"]
