"""The figures of a table, by name. A new one is a module here and a line below."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from experiments.store.layout import Store
from reports.figures import cost, curves, effects, lengths, style
from reports.results.results import counts_in, lengths_in
from reports.results.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawing = Callable[[Table, Store], "AbstractContextManager[Figure | None]"]
FIGURES: dict[str, tuple[str, Drawing]] = {
    "effects": ("Changes from base", lambda table, store: effects.draw(table)),
    "cost": ("Quality against cost", lambda table, store: cost.draw(table)),
    "curves": ("Learning curves", curves.draw),
    "lengths": (
        "Scores by sentence length",
        lambda table, store: lengths.draw(table, counts_in(store), lengths_in(store)),
    ),
}


def draw(table: Table, store: Store, formats: Iterable[str]) -> dict[str, Any]:
    """{"effects.svg": bytes, …} of what can be drawn now; a figure without a number to show is left out."""
    files: dict[str, bytes] = {}
    for name, (_, drawing) in FIGURES.items():
        with drawing(table, store) as figure:
            for format_ in formats:
                if figure is not None:
                    files[f"{name}.{format_}"] = style.save(figure, name, format_)
    return files
