"""Functions for scripts and notebooks: `ablations.load`, `ablations.plan` and `ablations.run`.

The functions take options of the commands as arguments, and raise UserError for mistakes of the user. Runs are trained
in new processes that do not import the caller's script. Therefore, a script needs no `if __name__ == "__main__"`, and a
notebook can train.
"""

import functools
import inspect
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from ablations.planning.declare_table import table_spec
from ablations.planning.plan import Plan, PlannedRun, plan_as_json
from ablations.service import progress_text
from ablations.service.coordination import WorkOptions, held
from ablations.service.enqueue import wanted
from ablations.service.preflight import paragraphs, refusals
from ablations.service.selected import Queueing, Selected, SelectedTable, Selectors, choose, choose_table
from ablations.service.tables import BY_STUDY, TableOptions, table_of
from ablations.service.train import check, train
from experiments.dotted import as_set, dotted
from experiments.errors import UserError
from experiments.jobs.coordinator.reporter import Summary, View
from experiments.messages import number, show, suggestion
from experiments.store.layout import Store
from reports.figures import effects, style
from reports.render.formats import render
from reports.render.html import fragment
from reports.render.printed import printed
from reports.results.frames import Frames, curves, frames
from reports.results.run_outcomes import failures
from reports.results.table import Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False)
class LoadedTable:
    """The table of a study, with the results that were in the store when the table was loaded.

    Load the table again to see later results. A notebook displays the table as `ablations report` prints it.
    """

    _chosen: SelectedTable
    _significance: str
    _provisional: bool
    _printing: TableOptions

    @cached_property
    def as_built(self) -> Table:
        """The table as Python objects (reports/results/table.py), for facts that the data frames do not contain."""
        return table_of(self._chosen, self._significance, provisional=self._provisional, printing=self._printing)

    @cached_property
    def table(self) -> "pd.DataFrame":
        """A data frame with the cells as text, as `ablations report` prints them. Each head is one line of text."""
        import pandas as pd  # imported late, because this import takes half a second

        grid = printed(self.as_built, "markdown").grid
        heads = [
            head.key if head.kind in ("group", "label") else f"{head.top} {head.sub if head.sub != 'ours' else ''}"
            for head in grid.heads
        ]
        lines = [[cell.text + cell.mark for cell in line.cells] for line in grid.lines]
        return pd.DataFrame(lines, columns=[head.strip() for head in heads])

    @property
    def runs(self) -> "pd.DataFrame":
        """A data frame with one line per row and seed: state, parameters, times, device, versions, commit."""
        return self._frames.runs

    @property
    def evaluations(self) -> "pd.DataFrame":
        """A data frame with one line per row, seed, set and metric. The values are not rounded."""
        return self._frames.evaluations

    @cached_property
    def curves(self) -> "pd.DataFrame":
        """A data frame with one line per row, seed, metric and step, for the metrics that runs logged in training."""
        return curves(table_spec(self._chosen.plan), self._chosen.store)

    @cached_property
    def _frames(self) -> Frames:
        return frames(table_spec(self._chosen.plan, self._chosen.columns), self._chosen.store)

    @property
    def notes(self) -> list[str]:
        """The warnings, and the notes under the table.

        For a bundle, the first entry says which numbers were recomputed.
        """
        shown = printed(self.as_built, "markdown")
        return [*filter(None, [shown.table.bundle]), *shown.warnings, *(note.text for note in shown.table.footnotes)]

    def render(self, format_: str = "markdown") -> str:
        """Return the table as text, in the format markdown, latex, csv, json, html or setup.

        Raises UserError for another format.
        """
        return render(self.as_built, format_)

    def plot_effects(self) -> "Figure":
        """Return a matplotlib figure of the changes from base with their intervals.

        Raises UserError if no row has a change from base.
        """
        with effects.draw_effects(self.as_built) as figure:
            if figure is None:
                raise UserError("There is nothing to draw, because no row of this table has a change from base.")
            picture = style.save(figure, "effects", "png")  # the style applies only inside this block
            # Without pyplot, notebooks display the figure only if it has this method.
            figure._repr_png_ = lambda: picture  # type: ignore[attr-defined]
            return figure

    def _repr_html_(self) -> str:
        return fragment(self.as_built)

    def __str__(self) -> str:
        return self.render()

    def __repr__(self) -> str:
        rows = self.as_built.rows
        found = [outcome.record is not None for row in rows for outcome in row.outcomes]
        runs = f"{sum(found)} of {number(len(found), 'run')} finished"
        return f"<{self.as_built.spec.name}: {number(len(rows), 'row')}, {runs}>"


@dataclass(frozen=True, eq=False)
class PlannedTable:
    """The planned runs of a table, with their states."""

    as_planned: Plan
    notes: tuple[str, ...]

    @cached_property
    def runs(self) -> "pd.DataFrame":
        """A data frame with one line per run.

        The columns are row, group, label, seed, run_id, state, num_params, predicted cost and the changes from base.
        """
        import pandas as pd

        lines: list[dict[str, Any]] = plan_as_json(self.as_planned)
        names = ["row", "group", "label", "seed", "run_id", "state", "num_params", "cost"]
        changed = dict.fromkeys(name for line in lines for name in line["overrides"])
        rows = [[*(line[n] for n in names), *(line["overrides"].get(n) for n in changed)] for line in lines]
        return pd.DataFrame(rows, columns=[*names, *changed])

    @property
    def states(self) -> dict[str, int]:
        """The number of runs in each state: missing, waiting, running, finished, failed, stale, damaged."""
        return dict(Counter(run.state for run in self.as_planned.trainings))

    def _repr_html_(self) -> str:
        shown: str = self.runs.to_html(index=False, na_rep="")
        return shown

    def __repr__(self) -> str:
        states = ", ".join(f"{count} {state}" for state, count in self.states.items())
        return f"<{self.as_planned.study.name}: {number(len(self.as_planned.trainings), 'run')}: {states}>"


Made = TypeVar("Made")
NAMES = {"sets": "set"}  # field of a dataclass → name of its argument, if they differ


def _spread(call: Callable[..., Made]) -> Callable[..., Made]:
    """Replace each dataclass parameter of a function by one argument per field, so that notebooks can complete them.

    The argument `set` may be a mapping {"model.num_heads": 4} or a list ["model.num_heads=4"]. For other text options,
    a list stands for "a,b" and a mapping for "a=1,b=2". The returned function raises UserError for unknown arguments,
    and for a value that no option can have.
    """
    first, *others = inspect.signature(call).parameters.values()
    made = {one.name: fields(one.annotation) for one in others if is_dataclass(one.annotation)}
    own = [one for one in others if one.name not in made]
    known = {NAMES.get(field.name, field.name): field for of in made.values() for field in of}
    shown = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=f.default) for n, f in known.items()]

    @functools.wraps(call)
    def called(study: str | Path, **given: Any) -> Made:
        names = [*known, *(one.name for one in own)]
        for name in given:
            if name not in names:
                raise UserError(f"There is no argument {name}. {suggestion(name, names, 'arguments')}")
        values = {
            known[name].name: _as_option(name, known[name], value) for name, value in given.items() if name in known
        }
        spread = {
            one.name: one.annotation(**{f.name: values[f.name] for f in made[one.name] if f.name in values})
            for one in others
            if one.name in made
        }
        return call(str(study), **spread, **{one.name: given[one.name] for one in own if one.name in given})

    called.__signature__ = inspect.Signature([first, *own, *shown])  # type: ignore[attr-defined]
    return called


def _as_option(name: str, field: Field[Any], value: Any) -> Any:
    kinds = get_args(field.type) or (field.type,)
    if int in kinds and (isinstance(value, bool) or not isinstance(value, int | None)):
        raise UserError(f"{name}={value!r}: it must be an integer.")
    if value is None or isinstance(value, bool):
        return value
    if Path in kinds:
        return Path(value)
    if list[str] in kinds:
        return _assignments(name, value)
    if str not in kinds:
        return value
    if isinstance(value, Mapping):
        return ",".join(f"{key}={given}" for key, given in value.items())
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _assignments(name: str, given: Mapping[str, Any] | Iterable[str]) -> list[str]:
    if not isinstance(given, Mapping):
        return [given] if isinstance(given, str) else list(given)
    try:
        return [as_set(key, value) for key, value in dotted(given).items()]
    except ValueError as error:
        raise UserError(f"{name}={show(dict(given))}: {error}.") from None


PROGRESS_EVERY_S = 10.0


@_spread
def load(
    study: str, selectors: Selectors, printing: TableOptions, *, significance: str = "auto", provisional: bool = False
) -> LoadedTable:
    """Return the table of a study or a bundle (.tar.gz), with the results that the store has now. Trains nothing.

    The arguments columns, hide, plain, paper, digits, caption, notes … are the options of `ablations report`
    (docs/printing.md).
    """
    chosen = choose_table(study, selectors, _say)
    return LoadedTable(_at_present(chosen), significance, provisional, printing)


@_spread
def plan(study: str, selectors: Selectors, *, yes: bool = False) -> PlannedTable:
    """Return the runs of a table, with their settings, parameters, cost and state. Trains nothing."""
    chosen = choose(study, selectors, many=yes)
    planned = chosen.plan
    todo = wanted(planned, "keep")
    found = refusals(chosen, todo)
    if any(not refusal.needs_corpus for refusal in found):
        raise UserError(paragraphs(found, todo))
    notes = (*planned.notes, *([f"ablations.run will refuse this: {paragraphs(found, todo)}"] if found else ()))
    return PlannedTable(planned, notes)


@_spread
def run(
    study: str,
    selectors: Selectors,
    queueing: Queueing,
    working: WorkOptions,
    *,
    max_hours: float | None = None,
    progress: bool = True,
) -> LoadedTable:
    """Train and evaluate the missing runs of a table, and return the table.

    progress: whether to write a line to standard error every ten seconds. Raises UserError with the reasons if a run
    failed or was not started. Finished runs stay in the store, and `ablations.load` returns their results.

    After one interruption (Ctrl-C, or the notebook's stop button), the training processes save a checkpoint and end.
    The same call then continues from these checkpoints.
    """
    chosen, stale = queueing.choose(study, selectors), queueing.stale
    say: Callable[[str], None] = _say if progress else _ignore
    check(chosen, working, stale=stale, max_hours=max_hours, progress=_ignore, say=say)

    def work(plan: Plan, _runs: list[PlannedRun]) -> Summary:
        return _work(chosen.store, working, say, {run.run_id for run in plan.trainings})

    summary = train(chosen, stale, work, _ignore, say)
    if summary.interrupted:
        raise KeyboardInterrupt("stopped; continue from the last checkpoints with the same call")
    table = LoadedTable(_at_present(chosen), "auto", False, BY_STUDY)
    if summary.failed or summary.left:
        raise UserError(" ".join(filter(None, [_failed(table, chosen, summary), _left(chosen, summary)])))
    return table


def _at_present(chosen: SelectedTable) -> SelectedTable:
    """Return the selection with its present plan, so that all parts of a table show the same state of the store."""
    planned: Plan = chosen.plan
    return replace(chosen, replan=lambda: planned)


def _work(store: Store, working: WorkOptions, say: Callable[[str], None], only: set[str]) -> Summary:
    shown_at = time.monotonic()

    def show(view: View) -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= PROGRESS_EVERY_S:
            shown_at = time.monotonic()
            line = progress_text.summary(progress_text.counted(view.counts), view.preparing, view.left_s)
            say("; ".join([line, *progress_text.lines(view)]))

    summary = working.start(store, "empty", show, only=only)
    for reason in held(store):
        say(f"not started: {reason}")
    return summary


def _failed(table: LoadedTable, chosen: Selected, summary: Summary) -> str:
    if not summary.failed:
        return ""
    failed = failures(table.as_built.outcomes, chosen.store)[:3]
    reasons = [
        f"{o.run.row} (seed {o.run.seed}): {(e.message.strip().splitlines() or ['ended'])[0]}" for o, e in failed
    ]
    logs = [chosen.store.attempt_folder(o.run.run_id, e.attempt) / "log.txt" for o, e in failed if e.attempt]
    return (
        f"{number(summary.failed, 'run')} failed. {'; '.join(reasons)}. Logs: {', '.join(map(str, logs)) or 'none'}. "
        "The other runs are kept: ablations.load returns the table with gaps, and the same call of ablations.run "
        "tries the failed runs again."
    )


def _left(chosen: Selected, summary: Summary) -> str:
    """Return a message about the runs that were not started, with the reason; "" if all runs were started."""
    if not summary.left:
        return ""
    why = "; ".join(held(chosen.store)) or "`ablations work --drain` stopped new runs"
    were = "was" if summary.left == 1 else "were"
    return f"{number(summary.left, 'run')} {were} not started: {why}. Continue with the same call of ablations.run."


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _ignore(*_: Any) -> None:
    pass
