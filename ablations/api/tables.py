"""A table and a plan as Python objects: pandas frames, HTML for notebooks, text in the command's formats, a figure."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ablations.planning.planned import Plan, plan_as_json
from ablations.service.selected import SelectedTable
from ablations.service.tables import TableOptions, table_of
from ablations.study.messages import number
from experiments.errors import UserError
from reports.figures import effects, style
from reports.render.formats import render
from reports.render.html import fragment
from reports.render.printed import printed
from reports.results.frames import Frames, curves, frames
from reports.results.table import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class LoadedTable:
    """A study's table as the store held it when it was loaded; load it again to see later results.

    A notebook shows it as `ablations report` prints it.
    """

    _chosen: SelectedTable
    _significance: str
    _provisional: bool
    _printing: TableOptions

    @cached_property
    def as_built(self) -> Table:
        """The table as data (reports/results/table.py), for what the frames do not have."""
        return table_of(self._chosen, self._significance, provisional=self._provisional, printing=self._printing)

    @cached_property
    def table(self) -> "pd.DataFrame":
        """The printed cells, as text: what `ablations report` prints, under heads in one line."""
        import pandas as pd  # imported late: it takes half a second

        grid = printed(self.as_built, "markdown").grid
        heads = [head.key if head.kind in ("group", "label") else f"{head.top} {_sub(head.sub)}" for head in grid.heads]
        lines = [[cell.text + cell.mark for cell in line.cells] for line in grid.lines]
        return pd.DataFrame(lines, columns=[head.strip() for head in heads])

    @property
    def runs(self) -> "pd.DataFrame":
        """One line per row × seed: state, parameters, times, device, versions, commit."""
        return self._frames.runs

    @property
    def evaluations(self) -> "pd.DataFrame":
        """One line per row × seed × set × metric, with the value in full."""
        return self._frames.evaluations

    @cached_property
    def curves(self) -> "pd.DataFrame":
        """One line per row × seed × metric × step that a run logged while it trained."""
        return curves(self._chosen.plan, self._chosen.store)

    @cached_property
    def _frames(self) -> Frames:
        return frames(self._chosen.plan, self._chosen.store, self._chosen.columns)

    @property
    def notes(self) -> list[str]:
        """The warnings, and the notes under the table; first, of a bundle, what of it was computed again."""
        shown = printed(self.as_built, "markdown")
        return [*filter(None, [shown.table.bundle]), *shown.warnings, *shown.notes]

    def render(self, format_: str = "markdown") -> str:
        """The table as text: markdown, latex, csv, tidy-csv, json, html, setup. Raises UserError for another format."""
        return render(self.as_built, format_)

    def plot_effects(self) -> "Figure":
        """Changes from base with their intervals, as a matplotlib figure. Raises UserError where none is known."""

        return effects_of(self.as_built)

    def _repr_html_(self) -> str:
        return fragment(self.as_built)

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        rows = self.as_built.rows
        found = [outcome.record is not None for row in rows for outcome in row.outcomes]
        return (
            f"<{self.as_built.name}: {number(len(rows), 'row')}, {sum(found)} of {number(len(found), 'run')} finished>"
        )


def _sub(text: str) -> str:
    return "" if text == "ours" else text


@dataclass(frozen=True, eq=False)
class PlannedTable:
    """The runs of a table, and how far they are."""

    as_planned: Plan
    notes: tuple[str, ...]

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """One line per run: row, seed, identity, state, parameters, predicted operations, changes from base."""
        import pandas as pd

        lines: list[dict[str, Any]] = plan_as_json(self.as_planned)
        names = ["row", "group", "label", "seed", "run_id", "state", "num_params", "cost"]
        changed = dict.fromkeys(name for line in lines for name in line["overrides"])
        rows = [[*(line[n] for n in names), *(line["overrides"].get(n) for n in changed)] for line in lines]
        return pd.DataFrame(rows, columns=[*names, *changed])

    @property
    def states(self) -> dict[str, int]:
        """Number of runs in each state: missing, waiting, running, finished, failed, stale, damaged."""
        return dict(Counter(run.state for run in self.as_planned.trainings))

    def _repr_html_(self) -> str:
        shown: str = self.runs.to_html(index=False, na_rep="")
        return shown

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        return f"<{self.as_planned.study.name}: {number(len(self.as_planned.trainings), 'run')}: {states}>"


# --- Figures for notebooks


def effects_of(table: Table) -> "Figure":
    """The figure of `ablations report --figures`, drawn; a notebook shows it also where pyplot was never imported."""
    with effects.draw_effects(table) as figure:
        if figure is None:
            raise UserError("There is nothing to draw yet: no row of this table has a change from base.")
        picture = style.save(figure, "effects", "png")  # while the style holds
        figure._repr_png_ = lambda: picture  # type: ignore[attr-defined]
        return figure
