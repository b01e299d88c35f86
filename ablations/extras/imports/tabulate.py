"""Make a table of runs that exist elsewhere, without a study and without a store, for `ablations tabulate`.

The readers of `ablations import` read the source. The program then writes a study to a temporary folder and keeps the
runs in memory. It guesses which settings vary and which numbers are metrics unless the user gives them.
"""

import json
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ablations.extras.imports.arrive import (
    ImportedRun,
    SetAndMetric,
    arrive,
    metrics_of_scores,
    read_source,
    records_of,
)
from ablations.extras.imports.external import External, ExternalRun, as_value
from ablations.extras.imports.factors import choose, guessed_metrics
from ablations.extras.imports.new_study import direction_of, study_text
from ablations.service.selected import SelectedTable, Selectors
from ablations.service.selected import choose as choose_study
from experiments.errors import UserError
from experiments.messages import number, suggestion
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.tasks.columns import EXAMPLE_FILE

MOST_RUNS = 20_000


@dataclass(frozen=True, kw_only=True)
class TabulateOptions:
    """Options of the user for the table of a source. The program guesses the value of an empty option."""

    rows: tuple[str, ...] = ()  # settings that distinguish rows
    seed: str = ""
    metrics: Mapping[str, str] | None = None  # name → "lower", "higher", or "" to guess it from the name
    base: Mapping[str, str] | None = None  # settings of the base row
    exclude: tuple[tuple[str, str], ...] = ()  # (name, value): runs with this value are left out
    name: str = "runs"


@dataclass(frozen=True)
class Tabulated:
    """A table of runs that exist elsewhere."""

    table: SelectedTable
    text: str  # text of the study file
    importing: str  # options of `ablations import` that import the same runs into this study
    said: tuple[str, ...]  # sentences on guesses and missing numbers


class _InMemory(Store):
    """A store with its records in memory. Only the scores of single examples are on disk, in `root`."""

    trainings: Mapping[str, TrainingResult]
    evaluations: Mapping[tuple[str, str], EvaluationResult]

    def result(self, run_id: str) -> TrainingResult | None:
        return self.trainings.get(run_id)

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult | None:
        return self.evaluations.get((run_id, eval_id))


def tabulate(source: str, options: TabulateOptions, folder: Path) -> Tabulated:
    """Make the table of a source. Raises UserError if the source cannot be printed as a table.

    folder: a temporary folder, which must exist as long as the table is used.
    """
    foreign = read_source(source, seed_by=options.seed)
    if len(foreign.runs) > MOST_RUNS:
        raise UserError(
            f"{foreign.source} has {len(foreign.runs):,} runs, but a table can have at most {MOST_RUNS:,}. If it has "
            "a line for every step, keep the last or the best of each run."
        )
    foreign = _without(foreign, options)
    metrics = dict(options.metrics) if options.metrics else dict.fromkeys(guessed_metrics(foreign), "")
    both = [name for name in options.rows if name in metrics]
    if both:
        raise UserError(f"{both[0]} is in --row and in --metric. A column is either a setting or a metric.")
    found = metrics_of_scores(foreign, list(metrics), ())
    _check_rows(foreign, options, metrics)
    choice = choose(foreign, metrics, options.rows)
    named = all(run.row for run in foreign.runs) and not options.rows
    arrived = _with_base(arrive(foreign, found, choice, None), options.base or {})
    better = {**foreign.better, **{name: way for name, way in metrics.items() if way}}
    text = study_text(options.name, foreign.source, arrived, found, better)
    file = folder / f"{options.name}.toml"
    file.write_text(text, encoding="utf-8")
    try:
        selected = choose_study(str(file), Selectors(store=folder / "runs"))
    except UserError as error:  # the user has not written this study, so the message names the source
        why = str(error).replace(str(file), foreign.source).replace("Correct it in the study file, or with --set.", "")
        raise UserError(f"{foreign.source} cannot be printed as a table. {why}") from None
    plan, store = selected.plan, _InMemory(folder / "runs")
    records = records_of(plan, foreign, arrived)
    store.trainings = {record.run.run_id: record.training for record in records}
    store.evaluations = {
        (record.run.run_id, eval_id): made for record in records for eval_id, made in record.evaluations.items()
    }
    for record in records:
        for planned in record.run.evaluations:
            if examples := record.arrived.run.examples.get(planned.set):
                beside = store.evaluation_folder(record.run.run_id, planned.eval_id)
                beside.mkdir(parents=True)
                (beside / EXAMPLE_FILE).write_text("".join(f"{json.dumps(one)}\n" for one in examples))
    rows, numbers = choice.rows, {run.seed for run in foreign.runs if run.seed}
    by = "as named there" if named else f"by {', '.join(rows)}" if rows else "one row, because no setting differs"
    seeds = number(len(numbers), "seed") if numbers else "no column (--seed); runs of a row are repeats"
    said = [
        f"{number(len(foreign.runs), 'run')} of {foreign.source}. Rows: {by}. Metrics: {_directions(metrics, better)}. "
        f"Seeds: {seeds}.",
        *(f"left out: {text}" for text in (*foreign.left_out, *choice.notes)),
        *_missing(arrived, found),
    ]
    table = SelectedTable(study=plan.study, store=store, replan=lambda: plan, columns=selected.columns)
    words = [] if named else ["--settings", ",".join(rows)]
    words += ["--seed-by", options.seed] if options.seed else []
    return Tabulated(table, text, shlex.join(["--from", source, *words]), tuple(said))


def _directions(metrics: Mapping[str, str], better: Mapping[str, str]) -> str:
    """Return the metrics as text, each with its better direction."""
    ways = {name: direction_of(name, better) for name in metrics}
    return ", ".join(
        f"{name} ({way} is better)" if way else f"{name} (unknown direction: write --metric {name}:min or {name}:max)"
        for name, way in ways.items()
    )


def _without(foreign: External, options: TabulateOptions) -> External:
    """Remove the runs of --exclude. Raises UserError if a condition matches no run, or if no run remains."""

    def known(run: ExternalRun, name: str) -> Any:
        own = {"row": run.row, "seed": run.seed, options.seed: run.seed}
        return own[name] if own.get(name) else {**run.labels, **run.settings, **run.metrics}.get(name)

    runs = list(foreign.runs)
    for name, text in options.exclude:
        kept = [run for run in runs if as_value(str(known(run, name))) != as_value(text) or known(run, name) is None]
        if len(kept) == len(runs):
            names = ["row", "seed", *foreign.settings, *foreign.metrics]
            near = "" if name in names else f" {suggestion(name, names, 'names')}"
            raise UserError(f"--exclude {name}={text}: no run of {foreign.source} has this value.{near}")
        runs = kept
    if not runs:
        raise UserError(f"--exclude excludes every run of {foreign.source}.")
    gone = [run for run in foreign.runs if run not in runs]
    left_out = (*foreign.left_out, *(f"{run.where}: excluded" for run in gone))
    return replace(foreign, runs=tuple(runs), left_out=left_out)


def _check_rows(foreign: External, options: TabulateOptions, metrics: Mapping[str, str]) -> None:
    names = [name for name in foreign.settings if name not in metrics]
    for name in options.rows:
        if name not in names and not (name == "row" and any(run.row for run in foreign.runs)):
            raise UserError(
                f"--row {name}: {foreign.source} has no setting of this name. {suggestion(name, names, 'settings')}"
            )


def _with_base(arrived: list[ImportedRun], base: Mapping[str, str]) -> list[ImportedRun]:
    """Sort the runs of the base row first. Raises UserError unless exactly one row has the settings of --base."""
    first = {one.row: one for one in reversed(arrived)}
    fit = [
        row
        for row, one in first.items()
        if all(
            text in (row, one.run.row) if name == "row" else one.settings.get(name, "") == as_value(text)
            for name, text in base.items()
        )
    ]
    if base and len(fit) != 1:
        words = ",".join(f"{name}={text}" for name, text in base.items())
        raise UserError(
            f"--base {words}: {'no row has' if not fit else f'{len(fit)} rows have'} these settings. "
            f"The rows: {', '.join(reversed(fit or first))}."
        )
    return sorted(arrived, key=lambda one: one.row != fit[0]) if base else arrived


def _missing(arrived: Sequence[ImportedRun], found: Mapping[str, SetAndMetric]) -> Iterator[str]:
    """Yield a sentence for each metric that some runs lack, and another one if a run of the base row lacks it."""
    for name, score in found.items():
        lacking = [one for one in arrived if not math.isfinite(one.scores.get(score, math.nan))]
        if lacking:
            runs = number(len(lacking), "run")
            some = f"{', '.join(one.run.where for one in lacking[:3])}{' …' if len(lacking) > 3 else ''}"
            yield f"{name} is missing in {runs} of {len(arrived)} ({some}); the table has gaps there."
        if of_base := [one for one in lacking if one.row == arrived[0].row]:
            yield (
                f"{name}: {of_base[0].run.where} is of {arrived[0].row}, the row that changes are from, so there is no "
                "change and no test. Name another row with --base, leave the run out with --exclude, or print the "
                "mean of the others with --provisional."
            )
