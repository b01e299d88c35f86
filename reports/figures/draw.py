"""The figures of a table, by name. This module does not import torch.

To add a figure, add a module to this folder and an entry to FIGURES.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from experiments.store.layout import Store
from reports.figures import curves, effects, style
from reports.figures.curves import draw_lengths
from reports.render.html import Drawn
from reports.results.evaluation_readers import counts_in, lengths_in
from reports.results.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Drawing = Callable[[Table, Store, style.Size], "AbstractContextManager[Figure | None]"]
FIGURES: dict[str, tuple[str, Drawing]] = {
    "effects": ("Changes from base", lambda table, store, size: effects.draw_effects(table, size)),
    "curves": ("Learning curves", curves.draw_curves),
    "lengths": (
        "Scores by sentence length",
        lambda table, store, size: draw_lengths(table, counts_in(store), lengths_in(store), size),
    ),
}


def draw(table: Table, store: Store, formats: Iterable[str]) -> dict[str, Any]:
    """Return the figures as files, {"effects.svg": bytes, …}. A figure without any number to show is left out."""
    files: dict[str, bytes] = {}
    for name, (_, drawing) in FIGURES.items():
        with drawing(table, store, style.PAPER) as figure:
            for format_ in formats:
                if figure is not None:
                    files[f"{name}.{format_}"] = style.save(figure, name, format_)
    return files


def for_page(table: Table, store: Store) -> dict[str, Drawn]:
    """Return the figures for the HTML page, each in a wide version for a desktop and a narrow version for a phone."""
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
