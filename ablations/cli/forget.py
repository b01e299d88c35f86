"""`ablations forget`: put runs aside, so that no table counts them; they can come back."""

import shlex
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service import forget as forgetting
from ablations.service.selected import Selectors, choose
from ablations.study.messages import number
from ablations.study.study import load_study
from experiments.errors import UserError, explain_os_errors
from experiments.store.forgotten import FOLDER
from experiments.store.layout import Store

SHOWN = 20


def forget(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="A built-in study, or the path of a .toml file.")
    ] = None,
    *,
    selectors: Selectors,
    runs: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN_ID", help="This run, whatever its table; repeatable.")
    ] = None,
    gone: Annotated[
        bool, typer.Option("--gone", help="Only runs that are no longer in the study as it is now (see `tables`).")
    ] = False,
    back: Annotated[bool, typer.Option("--back", help="Bring runs back that were forgotten.")] = False,
    yes: options.Sure = False,
    as_json: options.Json = False,
) -> None:
    """Put runs of a table aside; nothing is deleted. Asks first.

    They are moved to the folder `forgotten` of the store, and out of the queue and MLflow. Runs that also belong to
    another study, and those with which others were made, stay.
    """
    if back:
        _bring_back(selectors, study, runs or [], as_json)
        return
    if as_json and not yes:
        raise UserError("forget --json does not ask: add --yes. Nothing was changed.")
    if (study is None) == (not runs):
        raise UserError("forget: name a study (with --rows, --seeds … for a part of it), or runs with --run RUN_ID.")
    opened = selectors.open()
    with explain_os_errors(f"write to the store {opened.root}"), opened.coordinator_lock():
        if study is not None:
            chosen = choose(study, selectors, there=True)
            found = forgetting.candidates(opened, forgetting.of_table(chosen, gone=gone), chosen.study.name)
        else:
            found = forgetting.candidates(opened, forgetting.of_names(opened, runs or []), None)
        for run_id, why in found.stay.items():
            typer.echo(f"{run_id} stays: {why}", err=True)
        if as_json:
            forgetting.forget(opened, found.runs)
            print_json({"forgotten": list(found.runs), "stay": found.stay, "folder": str(opened.root / FOLDER)})
            return
        if not found.runs:
            typer.echo("nothing to forget")
            return
        _list(opened, found)
        if not yes and not typer.confirm(f"Put {number(len(found.runs), 'run')} aside?"):
            typer.echo("nothing was changed")
            return
        forgetting.forget(opened, found.runs)
    which = shlex.quote(study) if study else " ".join(f"--run {run_id}" for run_id in found.runs)
    typer.echo(
        f"{number(len(found.runs), 'run')} moved to {opened.root / FOLDER}; to bring back: "
        f"`ablations forget {which} --back {selectors.where}`"
    )


def _list(store: Store, found: forgetting.Candidates) -> None:
    for run_id, members in list(found.runs.items())[:SHOWN]:
        state = "finished" if (store.run_folder(run_id) / "result.json").exists() else "not finished"
        where = ", ".join(f"{member.study} {member.row}" for member in members)
        typer.echo(f"  {run_id} {where or 'of no table'}, {state}")
    if len(found.runs) > SHOWN:
        typer.echo(f"  … and {len(found.runs) - SHOWN:,} more")


def _bring_back(selectors: Selectors, study: str | None, runs: list[str], as_json: bool) -> None:
    opened = selectors.open()
    name = load_study(study).name if study is not None else None
    with explain_os_errors(f"write to the store {opened.root}"), opened.coordinator_lock():
        names = forgetting.remembered(opened, name, runs)
        if not names:
            raise UserError(
                f"No such run was forgotten in {opened.root}. Forgotten runs lie in {opened.root / FOLDER}."
            )
        back, kept = forgetting.bring(opened, names)
    for run_id in kept:
        typer.echo(f"{run_id} was trained again since, so it stays in {opened.root / FOLDER}", err=True)
    if as_json:
        print_json({"brought_back": list(back), "kept_aside": list(kept)})
        return
    typer.echo(f"{number(len(back), 'run')} brought back")
