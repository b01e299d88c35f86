"""A table of runs that exist elsewhere, without a study and without a store: `ablations tabulate`.

What a source holds is read by the readers of `ablations import`, and becomes a study in a temporary folder, whose runs
are kept in memory. What is varied and which numbers are metrics is guessed where it is not said.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ablations.service.external import (
    LOWER,
    Arrived,
    SetAndMetric,
    arrive,
    metrics_of_scores,
    read_source,
    records_of,
    set_and_metric,
    study_text,
)
from ablations.service.selected import SelectedTable, Selectors, choose
from ablations.study.messages import number, suggestion
from experiments.errors import UserError
from experiments.exchange.external import External, as_value
from experiments.exchange.external import number as as_number
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.tasks.columns import EXAMPLE_FILE

MOST_RUNS = 20_000
METRIC = re.compile(
    r"(^|[/_. ])(acc|accuracy|f1|bleu|chrf|rouge\w*|auc|auroc|score|precision|recall|map|r2|reward|return|em|psnr|ssim)"
    r"($|[/_. @,0-9])",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What the table of a source shall be, as typed; empty: it is guessed."""

    rows: tuple[str, ...] = ()  # settings that tell rows apart
    seed: str = ""
    metrics: Mapping[str, str] | None = None  # name → "lower", "higher", or "" for what the name means
    base: Mapping[str, str] | None = None  # settings of the row that changes are from
    name: str = "runs"


@dataclass(frozen=True)
class Tabulated:
    """A table of runs of elsewhere."""

    table: SelectedTable
    text: str  # of a study file
    importing: str  # the options of `ablations import` that bring the same runs into it
    said: tuple[str, ...]  # what was guessed, what is missing


class _InMemory(Store):
    """A store whose records are not on a disk; only single examples are, in `root`."""

    trainings: Mapping[str, TrainingResult]
    evaluations: Mapping[tuple[str, str], EvaluationResult]

    def result(self, run_id: str) -> TrainingResult | None:
        return self.trainings.get(run_id)

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult | None:
        return self.evaluations.get((run_id, eval_id))


def tabulate(source: str, wish: Wish, folder: Path) -> Tabulated:
    """The table of a source; `folder` is temporary and has to outlive it. Raises UserError."""
    foreign = read_source(source, seed_by=wish.seed)
    if len(foreign.runs) > MOST_RUNS:
        raise UserError(
            f"{foreign.source} has {len(foreign.runs):,} runs, and a table takes at most {MOST_RUNS:,}. If it has a "
            "line for every step, keep the last or the best of each run."
        )
    metrics = _metrics(foreign, wish)
    both = [name for name in wish.rows if name in metrics]
    if both:
        raise UserError(f"{both[0]} is named by --row and by --metric: a column is either a setting or a metric.")
    found = metrics_of_scores(foreign, list(metrics), ())
    rows, seeded = _rows(foreign, wish, metrics), [run.seed for run in foreign.runs if run.seed]
    named = all(run.row for run in foreign.runs) and not wish.rows
    arrived = _with_base(arrive(foreign, found, None if named else rows, None), wish.base or {})
    text = study_text(wish.name, foreign.source, arrived, found, metrics)
    (folder / f"{wish.name}.toml").write_text(text, encoding="utf-8")
    selected = choose(str(folder / f"{wish.name}.toml"), Selectors(store=folder / "runs"))
    plan, store = selected.plan, _InMemory(folder / "runs")
    records = records_of(plan, foreign, arrived)
    store.trainings = {record.run.run_id: record.training for record in records}
    store.evaluations = {
        (record.run.run_id, eval_id): made for record in records for eval_id, made in record.evaluations.items()
    }
    for record in records:
        for planned in record.run.evaluations:
            if examples := record.arrived.run.examples.get(planned.spec.set):
                beside = store.evaluation_folder(record.run.run_id, planned.eval_id)
                beside.mkdir(parents=True)
                (beside / EXAMPLE_FILE).write_text("".join(f"{json.dumps(one)}\n" for one in examples))
    how = ", ".join(f"{name} ({metrics[name] or direction(name)} is better)" for name in metrics)
    by = "as named there" if named else f"by {', '.join(rows)}" if rows else "one, as no setting differs"
    seeds = f"{len(set(seeded))} seeds" if seeded else "none named: name their column with --seed"
    said = [
        f"{number(len(foreign.runs), 'run')} of {foreign.source}. Rows: {by}. Metrics: {how}. Seeds: {seeds}.",
        *(f"left out: {text}" for text in foreign.left_out),
        *_missing(arrived, found),
    ]
    table = SelectedTable(study=plan.study, store=store, replan=lambda: plan, columns=selected.columns)
    words = [*(["--settings", ",".join(rows)] if not named else []), *(["--seed-by", wish.seed] if wish.seed else [])]
    return Tabulated(table, text, shlex.join(["--from", source, *words]), tuple(said))


def direction(name: str) -> str:
    """Whether lower or higher is better, by what a metric's name means."""
    return "lower" if LOWER.search(set_and_metric(name)[1]) else "higher"


def _metrics(foreign: External, wish: Wish) -> dict[str, str]:
    """The metrics with their directions: as wished, as the source says, else the numbers named as metrics are."""
    if wish.metrics:
        return dict(wish.metrics)
    if foreign.metrics:
        return dict.fromkeys(foreign.metrics, "")
    guessed = [n for n in foreign.settings if METRIC.search(n) or LOWER.search(n) or "/" in n]
    numbers = [n for n in guessed if all(as_number(run.settings.get(n, 0)) is not None for run in foreign.runs)]
    return dict.fromkeys(numbers, "")


def _rows(foreign: External, wish: Wish, metrics: Mapping[str, str]) -> list[str]:
    """The settings that tell rows apart: as wished, else those that differ, but not from run to run."""
    names = [name for name in foreign.settings if name not in metrics]
    for name in wish.rows:
        if name not in names and name != "row":
            raise UserError(
                f"--row {name}: {foreign.source} has no such setting. {suggestion(name, names, 'settings')}"
            )
    if wish.rows:
        return list(wish.rows)
    seeded = len({run.seed for run in foreign.runs}) > 1
    most = len(foreign.runs) - 1 if seeded else len(foreign.runs)
    return [n for n in names if 1 < len({repr(run.settings.get(n)) for run in foreign.runs}) <= most]


def _with_base(arrived: list[Arrived], base: Mapping[str, str]) -> list[Arrived]:
    """The runs of the base row first. Raises UserError where not exactly one row has the settings of --base."""
    first = {one.row: one for one in reversed(arrived)}
    fit = [
        row
        for row, one in first.items()
        if all(
            text == row if name == "row" else one.settings.get(name) == as_value(text) for name, text in base.items()
        )
    ]
    if base and len(fit) != 1:
        words = ",".join(f"{name}={text}" for name, text in base.items())
        raise UserError(
            f"--base {words}: {'no row has' if not fit else f'{len(fit)} rows have'} these settings. "
            f"The rows: {', '.join(reversed(fit or first))}."
        )
    return sorted(arrived, key=lambda one: one.row != fit[0]) if base else arrived


def _missing(arrived: Sequence[Arrived], found: Mapping[str, SetAndMetric]) -> Iterator[str]:
    """A sentence for each metric that some runs lack."""
    for name, score in found.items():
        if lacking := [one.run.where for one in arrived if score not in one.scores]:
            runs = number(len(lacking), "run")
            yield f"{name} is missing in {runs} of {len(arrived)} ({', '.join(lacking[:3])} …): gaps in the table."
