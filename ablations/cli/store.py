"""Commands on a whole store: `ablations tables` and `forget`."""

import contextlib
import shlex
import sys
import time
from collections import Counter
from typing import Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import aligned, answer, print_json
from ablations.service import forget as forgetting
from ablations.service.selected import Selectors, StoreOptions, choose
from ablations.service.store_tables import StoreTable, store_tables
from experiments.dotted import as_set
from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.jobs.queue.job import State
from experiments.jobs.queue.queue import Queue
from experiments.messages import number
from experiments.store.layout import Store
from experiments.store.retention import FOLDER, removable, remove, size

HEADS = ("study", "profile", "corpus", "rows", "runs", "state", "last change", "")
LEFT = (0, 1, 2, 5, 6, 7)  # columns of text, aligned at the left


def tables(store_options: StoreOptions, as_json: options.Json = False) -> None:
    """List the tables of a store: study, profile, corpus, rows, runs, state and last change.

    Runs that are no longer in their study, or whose settings differ from it, are listed on separate lines.
    """
    found = store_tables(store_options)
    none = [f"no run was started in {store_options.store}"]
    answer(as_json, [_as_json(table) for table in found], aligned([HEADS, *map(_line, found)], LEFT) if found else none)


def note(table: StoreTable) -> str:
    """Return the reason why the table's runs are not in the present study; "" if the study contains the runs."""
    if table.gone:
        return "no longer in the study"
    if table.settings:
        return f"trained with other settings: {shlex.join(as_set(*item) for item in table.settings.items())}"
    return "" if table.known else table.unread or "its study was not found"


def _line(table: StoreTable) -> tuple[str, ...]:
    changed = time.strftime("%Y-%m-%d %H:%M", time.localtime(table.changed)) if table.changed else ""
    return (*table.name, str(len(table.rows)), str(len(table.runs)), table.state, changed, note(table))


def _as_json(table: StoreTable) -> dict[str, Any]:
    return {
        **table.name._asdict(),
        "rows": table.rows,
        "runs": len(table.runs),
        "finished": table.finished,
        "state": table.state,
        "changed": table.changed,
        "in_study": None if not table.known else not (table.gone or table.settings),
        "settings": dict(table.settings),
        "note": note(table),
        "select": list(table.words),
        "run_ids": [run.run_id for run in table.runs],
    }


SHOWN = 20  # maximum number of runs listed before the question


def forget(
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="A built-in study, or the path of a .toml file.")
    ] = None,
    *,
    selectors: Selectors,
    runs: Annotated[
        list[str] | None, typer.Option("--run", metavar="RUN_ID", help="A run of any table; repeatable.")
    ] = None,
    gone: Annotated[
        bool, typer.Option("--gone", help="Only runs that are no longer in the study (see `tables`).")
    ] = False,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Remove the checkpoints of all finished runs instead, to free space.")
    ] = False,
    yes: options.Sure = False,
    as_json: options.Json = False,
) -> None:
    """Move runs of a table to the folder `forgotten`, or remove checkpoints. Asks first.

    Moved runs are also removed from the queue and from MLflow. Runs stay if they belong to another study too, or if
    other runs were made from them. With --checkpoints, weights, scores, events and logs stay.
    """
    if checkpoints:
        if study is not None or runs:
            raise UserError("--checkpoints applies to the whole store. Leave out STUDY and --run.")
        _remove_checkpoints(selectors.open(), yes, as_json)
        return
    if as_json and not yes:
        raise UserError("Nothing was changed, because forget --json does not ask. Add --yes.")
    if (study is None) == (not runs):
        raise UserError(
            "forget: name a study (with --rows, --seeds … for some of its runs), or runs with --run RUN_ID."
        )
    opened = selectors.open()
    with explain_os_errors(f"write to the store {opened.root}"), opened.coordinator_lock():
        if study is not None:
            chosen = choose(study, selectors, there=True)
            found = forgetting.candidates(opened, forgetting.of_table(chosen, gone=gone), chosen.study.name)
        else:
            found = forgetting.candidates(opened, forgetting.of_names(opened, runs or []), None)
        for run_id, why in found.stay.items():
            typer.echo(f"{run_id} stays, because {why}", err=True)
        if as_json:
            forgetting.forget(opened, found.runs)
            print_json({"forgotten": list(found.runs), "stay": found.stay, "folder": str(opened.root / FOLDER)})
            return
        if not found.runs:
            forgetting.forget(opened, {})
            typer.echo("nothing to forget")
            return
        for run_id, members in list(found.runs.items())[:SHOWN]:
            state = "finished" if (opened.run_folder(run_id) / "result.json").exists() else "not finished"
            where = ", ".join(f"{member.study} {member.row}" for member in members)
            typer.echo(f"  {run_id} {where or 'of no table'}, {state}")
        if len(found.runs) > SHOWN:
            typer.echo(f"  … and {len(found.runs) - SHOWN:,} more")
        if not yes and not _agrees(f"Move {number(len(found.runs), 'run')} to {opened.root / FOLDER}?"):
            typer.echo("nothing was changed")
            return
        forgetting.forget(opened, found.runs)
    home = opened.root / FOLDER
    typer.echo(f"{number(len(found.runs), 'run')} moved to {home}; to restore a run, move its folder to {opened.runs}")


def _agrees(question: str) -> bool:
    """Ask the user. Raise UserError if standard input is not a terminal and ends without an answer."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        if sys.stdin.isatty():  # the user pressed Ctrl-C or Ctrl-D
            raise
        typer.echo()
        raise UserError(
            "Nothing was changed, because there is no terminal to answer the question. Add --yes."
        ) from None


def _remove_checkpoints(opened: Store, yes: bool, as_json: bool) -> None:
    with alone(opened):
        busy = _busy(opened)
        found = list(removable(opened, busy))
        if as_json:
            if yes:
                remove([one.path for one in found])
            print_json(
                [{"run_id": one.run_id, "what": one.what, "path": str(one.path), "removed": yes} for one in found]
            )
            return
        if not found:
            typer.echo(f"nothing to remove in {opened.root}")
            return
        megabytes = size([one.path for one in found]) / 1e6
        counts = Counter(one.what for one in found)
        what = ", ".join(f"{number(count, 'folder')} of {name}" for name, count in counts.items())
        runs = number(len({one.run_id for one in found}), "run")
        typer.echo(f"{megabytes:,.1f} MB in {opened.root}: {what}, of {runs}.")
        lost = "averaged, evaluated at their best step, trained for more steps or branched from"
        typer.echo(f"Without them, runs cannot be {lost}.")
        if not yes and not _agrees("Remove them?"):
            typer.echo("nothing was removed")
            return
        remove([one.path for one in found])
        typer.echo(f"removed {megabytes:,.1f} MB")


def _busy(store: Store) -> set[str]:
    """Return the waiting and running runs, and the runs that these read (parent runs and members of ensembles)."""
    with Queue(store.queue_db, create=False) as queue:
        found = {row.run_id for row in queue.status() if row.state in (State.WAITING, State.RUNNING)}
        for run_id in list(found):
            with contextlib.suppress(Damaged):
                found.update(queue.job(run_id).job.spec.reads)
    return found


def alone(store: Store) -> contextlib.AbstractContextManager[None]:
    """Return a lock that keeps coordinators from working on the store. Raises UserError if the store has no runs."""
    if not store.runs.is_dir():
        raise UserError(f"{store.root} is not a store with runs. Name the store with --store.")
    return store.coordinator_lock()
