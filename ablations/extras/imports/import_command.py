"""The command `ablations import`: import finished runs of another store, of a bundle, or of other programs."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json, say
from ablations.extras.imports.arrive import (
    Planned,
    arrive,
    metrics_of_scores,
    read_source,
    refuse_other_settings,
    unknown_settings,
    write_runs,
)
from ablations.extras.imports.external import External
from ablations.extras.imports.factors import FactorChoice, choose, guessed_metrics
from ablations.extras.imports.new_study import study_text
from ablations.service.enqueue import row_of
from ablations.service.selected import Selectors, StoreOptions, holds_table, open_table
from ablations.service.selected import choose as choose_study
from ablations.study.study_file import builtin_studies
from experiments.errors import UserError, explain_os_errors
from experiments.exchange.import_runs import import_runs, runs_in
from experiments.messages import number
from experiments.store.durable import folder_beside, remove_folder, write_bytes
from experiments.store.layout import Store, TableRow, keep_row
from experiments.tasks.columns import Column
from experiments.tracking.rebuild import write_lacking


def import_stored(source: Path, store_options: StoreOptions, as_json: bool = False) -> None:
    """Import finished runs of a bundle or another store; runs that this store already has stay unchanged."""
    origin, found = _origin(source)
    target = store_options.open(create=True)
    with target.coordinator_lock():
        taken = list(import_runs(origin, target, runs_in(origin)))
        for run_id, rows in found.items():
            for row in rows if target.result(run_id) else ():
                keep_row(target, run_id, row)
        write_lacking(target)
    if as_json:
        runs = [{"run_id": item.run_id, "how": item.how, "evaluations": item.evaluations} for item in taken]
        print_json({"store": str(target.root), "runs": runs})
        return
    counts = Counter(item.how for item in taken)
    scores = sum(item.evaluations for item in taken)
    typer.echo(
        f"{number(counts['taken'], 'run')} imported into {target.root}, {counts['had']} already there; "
        f"{number(scores, 'evaluation')} imported"
    )
    other = (
        "both stores have this run with different results (another device or code); the result of this store was kept"
    )
    for item in taken:
        if item.how == "other":
            typer.echo(f"{item.run_id}: {other}", err=True)


def _origin(source: Path) -> tuple[Store, dict[str, list[TableRow]]]:
    """Return the store to import from, and the rows of its runs by run_id.

    The rows come from the plan of a bundle. For a store they are empty, because its folders contain the rows.
    """
    if holds_table(source.name):
        found = open_table(source, say)
        plan, rows = found.plan, dict[str, list[TableRow]]()
        for run in plan.trainings:
            rows.setdefault(run.run_id, []).append(row_of(plan, run, found.store))
        return found.store, rows
    if not (source / "store.json").is_file():
        raise UserError(f"{source} is not a bundle (.tar.gz) and not a store (it has no store.json).")
    return Store.open(source, create=False), {}


def import_(
    source: Annotated[str, typer.Argument(metavar="BUNDLE|STORE|STUDY", help="With --from: the study of the runs.")],
    selectors: Selectors,
    origin: Annotated[
        str | None,
        typer.Option("--from", metavar="SOURCE", help="A CSV file, mlflow:URI, wandb:… as in `tabulate`."),
    ] = None,
    row_by: Annotated[
        str, typer.Option("--row-by", metavar="NAME", help="Column, tag or setting with the row's name.")
    ] = "",
    seed_by: Annotated[str, typer.Option("--seed-by", metavar="NAME", help="Column or setting with the seed.")] = "",
    metrics: Annotated[
        str | None, typer.Option("--metric", metavar="A,B", help="Metrics to import; those of the study if unset.")
    ] = None,
    settings: Annotated[
        str | None, typer.Option("--settings", metavar="A,B", help="Settings to import; all if unset.")
    ] = None,
    replace_: Annotated[bool, typer.Option("--replace", help="Replace numbers that were imported before.")] = False,
    as_json: options.Json = False,
) -> None:
    """Import finished runs into this store; runs that it already has stay unchanged.

    Runs of a bundle or of another store are copied. With --from, runs that other programs trained become rows of a
    study that have imported = true; a study file that does not exist is written (ablations/extras/imports/import.md).
    """
    if origin is None:
        import_stored(Path(source), selectors, as_json)
        return
    foreign = read_source(origin, row_by, seed_by)
    asked = _Import(selectors, foreign, _names(metrics) or [], _names(settings), replace_)
    file, existed = Path(source), selectors.store.exists()
    try:
        if file.exists() or source in builtin_studies():
            facts = asked.into(source)
        elif file.suffix != ".toml":
            raise UserError(f"{source} is not a study. Name a file STUDY.toml; it is written if it does not exist.")
        else:
            facts = asked.with_new_study(file)
    except UserError:
        if not existed:
            remove_folder(selectors.store)
        raise
    if as_json:
        print_json(facts)
    else:
        _say_imported(facts, selectors)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


@dataclass(frozen=True)
class _Import:
    """An import of runs that another program trained."""

    selectors: Selectors
    foreign: External
    metrics: list[str]
    settings: list[str] | None  # settings to import; None for all
    again: bool  # whether to replace numbers that differ

    def with_new_study(self, file: Path) -> dict[str, Any]:
        """Import the runs into a new study, and then write its file. Return the facts to print.

        The study is tried in a temporary folder first, so that no file remains if the import fails.
        """
        names = self.metrics or guessed_metrics(self.foreign)
        found = metrics_of_scores(self.foreign, names, ())
        choice = self._choice(names)
        arrived = arrive(self.foreign, found, choice, None)
        text = study_text(file.stem, self.foreign.source, arrived, found, self.foreign.better)
        with explain_os_errors(f"write {file}"):
            if not file.absolute().parent.is_dir():
                raise UserError(f"{file}: the folder {file.absolute().parent} does not exist. Create it.")
            with folder_beside(file.absolute().parent, ".importing-") as folder:
                (folder / file.name).write_text(text, encoding="utf-8")
                beside = str(folder / file.name)
                try:
                    facts = replace(self, metrics=names, again=False).into(beside)
                except UserError as error:  # the temporary file in the message no longer exists
                    raise UserError(str(error).replace(beside, f"{file}, as it would be written")) from None
            write_bytes(file.absolute(), text.encode())
        return facts | {"study": str(file), "study_written": str(file)}

    def _choice(self, metrics: Sequence[str]) -> FactorChoice:
        if self.settings is not None:
            return FactorChoice(tuple(self.settings), tuple(self.settings))
        return choose(self.foreign, metrics, ())

    def into(self, study: str) -> dict[str, Any]:
        """Import the runs into the rows of a study. Return the facts to print."""
        if not self.selectors.store.exists():
            self.selectors.open(create=True)
        chosen = choose_study(study, self.selectors)
        plan = chosen.plan
        columns: list[Column] = []
        for column in chosen.columns:
            sets = {e.set for run in plan.runs for e in run.evaluations} if column.set == "*" else {column.set}
            there = _sets_and_metrics(columns)
            columns += [replace(column, set=name) for name in sorted(sets) if (name, column.metric) not in there]
        found = metrics_of_scores(self.foreign, self.metrics, columns)
        for name, (set_, metric) in found.items():
            if (set_, metric) not in _sets_and_metrics(columns):
                raise UserError(
                    f"{name} is {metric} of {set_}, which the study does not print. Add it to the study as "
                    "[[metric]], or leave it out of --metric."
                )
        choice = self._choice(list(found))
        arrived = arrive(self.foreign, found, choice, Planned.of(plan))
        refuse_other_settings(arrived, plan)
        store = self.selectors.open(create=True)
        with store.coordinator_lock():
            written = write_runs(plan, store, self.foreign, arrived, replace=self.again)
            write_lacking(store)
        repeats = not any(run.seed for run in self.foreign.runs) and len({one.seed for one in arrived}) > 1
        return {
            "study": study, "store": str(store.root), "source": self.foreign.source,
            "rows": list(dict.fromkeys(one.row for one in arrived)),
            "imported": written.new, "there": written.had, "replaced": written.replaced,
            "left_out": [*self.foreign.left_out, *choice.notes], "other_settings": unknown_settings(arrived, plan),
            "repeats": repeats,
        }  # fmt: skip


def _say_imported(facts: dict[str, Any], selectors: Selectors) -> None:
    for text in facts["left_out"]:
        typer.echo(f"left out: {text}", err=True)
    if facts["repeats"]:
        typer.echo("no run has a seed (--seed-by), so runs of a row are repeats and form no pairs", err=True)
    if facts["other_settings"]:
        others = ", ".join(facts["other_settings"])
        typer.echo(f"kept with the runs, but not settings of this study: {others}", err=True)
    typer.echo(
        f"{number(facts['imported'], 'run')} of {number(len(facts['rows']), 'row')} imported from {facts['source']} "
        f"into {facts['store']}, {facts['there']} already there, {facts['replaced']} replaced; "
        f"`ablations report {facts['study']} {selectors.where}`"
    )
    if file := facts.get("study_written"):
        typer.echo(f"wrote {file}; check its title, the direction of its metrics, and its base row")


def _sets_and_metrics(columns: list[Column]) -> set[tuple[str, str]]:
    return {(column.set, column.metric) for column in columns}
