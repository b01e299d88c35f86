"""`ablations import`: finished runs of another store or a bundle; runs trained by other programs."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ablations.cli import options
from ablations.cli.bundle import import_stored
from ablations.cli.terminal import print_json
from ablations.service.foreign import arrive, places
from ablations.service.foreign_store import refuse_other_settings, unknown_settings, write_runs
from ablations.service.foreign_study import study_text
from ablations.service.selected import Selectors, choose
from ablations.study.messages import number
from ablations.study.study_file import builtin_names
from experiments.errors import UserError, explain_os_errors
from experiments.exchange.foreign.csv_file import read_csv
from experiments.exchange.foreign.runs import Foreign
from experiments.exchange.foreign.wandb_export import read_wandb
from experiments.store.durable import folder_beside, remove_folder, write_bytes
from experiments.tasks.columns import Column
from experiments.tracking.rebuild import write_lacking


def import_(
    source: Annotated[
        str, typer.Argument(metavar="BUNDLE|STORE|STUDY", help="With --csv, --mlflow or --wandb-export: the study.")
    ],
    selectors: Selectors,
    csv: Annotated[Path | None, typer.Option("--csv", metavar="FILE", help="Scores in a table of your own.")] = None,
    mlflow: Annotated[str | None, typer.Option("--mlflow", metavar="URI", help="Runs of another MLflow.")] = None,
    wandb_export: Annotated[
        Path | None, typer.Option("--wandb-export", metavar="FILE", help="Runs exported from W&B, CSV or JSON.")
    ] = None,
    experiment: Annotated[str, typer.Option(metavar="NAME", help="MLflow's experiment, if it has several.")] = "",
    row_by: Annotated[
        str, typer.Option("--row-by", metavar="NAME", help="The column, tag or setting of the row.")
    ] = "",
    seed_by: Annotated[str, typer.Option("--seed-by", metavar="NAME", help="Column or setting of the seed.")] = "",
    metrics: Annotated[
        str | None, typer.Option("--metrics", metavar="A,B", help="Their metrics to import; else those of the study.")
    ] = None,
    settings: Annotated[
        str | None, typer.Option("--settings", metavar="A,B", help="Their settings that count; else all.")
    ] = None,
    replace_: Annotated[bool, typer.Option("--replace", help="Replace other numbers imported before.")] = False,
    as_json: options.Json = False,
) -> None:
    """Import finished runs into this store; runs that it already has stay unchanged.

    Of a bundle or another store: as they are. With --csv, --mlflow or --wandb-export: runs that other programs trained,
    as rows of a study that have imported = true; a study file that does not exist is written (docs/import.md).
    """
    given = [option for option in (csv, mlflow, wandb_export) if option is not None]
    if len(given) > 1:
        raise UserError("--csv, --mlflow and --wandb-export: give one of them. Nothing was imported.")
    if not given:
        import_stored(Path(source), selectors, as_json)
        return
    if csv is not None:
        foreign = read_csv(csv, row_by, seed_by)
    elif wandb_export is not None:
        foreign = read_wandb(wandb_export, row_by, seed_by)
    else:
        from experiments.tracking.foreign import read_mlflow  # with MLflow: it takes two seconds

        foreign = read_mlflow(str(mlflow), experiment, row_by, seed_by)
    done = _import(source, selectors, foreign, _names(metrics) or [], _names(settings), replace_)
    if as_json:
        print_json(done.facts)
    else:
        done.say(selectors)


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [part.strip() for part in text.split(",") if part.strip()]


def _import(
    source: str, selectors: Selectors, foreign: Foreign, metrics: list[str], only: list[str] | None, again: bool
) -> "_Done":
    file, existed = Path(source), selectors.store.exists()
    try:
        if file.exists() or source in builtin_names():
            return _into(source, selectors, foreign, metrics, only, again)
        elif file.suffix != ".toml":
            raise UserError(f"{source} is no study. Name a file STUDY.toml; it is written if it does not exist.")
        else:
            return _with_new_study(file, selectors, foreign, metrics, only)
    except UserError:
        if not existed:
            remove_folder(selectors.store)
        raise


def _with_new_study(
    file: Path, selectors: Selectors, foreign: Foreign, metrics: list[str], only: list[str] | None
) -> "_Done":
    """Try the new study beside its place first: it is written when all of it is imported."""
    found = places(foreign, metrics, ())
    text = study_text(file.stem, foreign.source, arrive(foreign, found, only, None), found)
    with explain_os_errors(f"write {file}"):
        if not file.absolute().parent.is_dir():
            raise UserError(f"{file}: there is no folder {file.absolute().parent}. Create it. Nothing was imported.")
        with folder_beside(file.absolute().parent, ".importing-") as folder:
            (folder / file.name).write_text(text, encoding="utf-8")
            beside = str(folder / file.name)
            try:
                done = _into(beside, selectors, foreign, metrics, only, False, named=file)
            except UserError as error:  # the study that it is about is gone by now
                raise UserError(str(error).replace(beside, f"{file}, as it would be written")) from None
        write_bytes(file.absolute(), text.encode())
    return done._replace(facts=done.facts | {"study_written": str(file)})


def _into(
    study: str,
    selectors: Selectors,
    foreign: Foreign,
    metrics: list[str],
    only: list[str] | None,
    again: bool,
    named: Path | None = None,
) -> "_Done":
    if not selectors.store.exists():
        selectors.open(create=True)
    chosen = choose(study, selectors)
    plan = chosen.plan
    columns: list[Column] = []
    for column in chosen.columns:
        sets = {e.spec.set for run in plan.runs for e in run.evaluations} if column.set == "*" else {column.set}
        columns += [replace(column, set=name) for name in sorted(sets) if (name, column.metric) not in _places(columns)]
    found = places(foreign, metrics, columns)
    for name, place in found.items():
        if place not in _places(columns):
            raise UserError(
                f"{name} is {place[1]} of {place[0]}, which the study does not print. Add it to the study as "
                "[[metric]], or leave it out of --metrics. Nothing was imported."
            )
    planned: dict[str, list[int]] = {}
    for run in plan.runs:
        if run.imported:
            planned.setdefault(run.row, []).append(run.seed)
    arrived = arrive(foreign, found, only, planned)
    refuse_other_settings(arrived, plan)
    store = selectors.open(create=True)
    with store.coordinator_lock():
        written = write_runs(plan, store, foreign, arrived, replace=again)
        write_lacking(store)
    rows = list(dict.fromkeys(one.row for one in arrived))
    return _Done(
        {
            "study": str(named or study), "store": str(store.root), "source": foreign.source, "rows": rows,
            "imported": written.new, "there": written.had, "replaced": written.replaced,
            "left_out": list(foreign.left_out), "other_settings": unknown_settings(arrived, plan),
        }
    )  # fmt: skip


class _Done(NamedTuple):
    """What was imported."""

    facts: dict[str, Any]

    def say(self, selectors: Selectors) -> None:
        """The same in words."""
        it = self.facts
        for text in it["left_out"]:
            typer.echo(f"left out: {text}", err=True)
        if it["other_settings"]:
            others = ", ".join(it["other_settings"])
            typer.echo(f"kept with the runs, but no settings of this study: {others}", err=True)
        typer.echo(
            f"{number(it['imported'], 'run')} of {number(len(it['rows']), 'row')} imported from {it['source']} into "
            f"{it['store']}, {it['there']} already there, {it['replaced']} replaced; "
            f"`ablations report {it['study']} {selectors.where}`"
        )
        if file := it.get("study_written"):
            typer.echo(f"{file} written: correct its title, the metrics' direction and the base row as you like")


def _places(columns: list[Column]) -> set[tuple[str, str]]:
    return {(column.set, column.metric) for column in columns}
