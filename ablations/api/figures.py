"""Figures for notebooks."""

from typing import TYPE_CHECKING

from experiments.errors import UserError
from reports.figures import effects, style
from reports.results.table import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def effects_of(table: Table) -> "Figure":
    """The figure of `ablations figures`, drawn; a notebook shows it also where pyplot was never imported."""
    with effects.draw(table) as figure:
        if figure is None:
            raise UserError("There is nothing to draw yet: no row of this table has a change from base.")
        picture = style.save(figure, "effects", "png")  # while the style holds
        figure._repr_png_ = lambda: picture  # type: ignore[attr-defined]
        return figure
