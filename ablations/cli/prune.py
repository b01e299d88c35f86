"""`ablations prune` and `ablations rebuild`: free disk space; write MLflow's database again."""

import contextlib
from collections import Counter
from collections.abc import Iterable
from typing import Annotated

import typer

from ablations.cli import exits, options
from ablations.cli.terminal import print_json
from ablations.service.selected import Place
from ablations.study.messages import number
from experiments.errors import Damaged, UserError
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.records import TrackedRun
from experiments.store.durable import remove_folder
from experiments.store.layout import Store
from experiments.store.pruning import removable, remove, size
from experiments.tracking.rebuild import rebuild as rebuild_tracking
from experiments.tracking.rebuild import tracked_runs
from experiments.tracking.sinks.sink import SinkError, SinkProcess, check_sink, folder_of


def prune(
    place: Place,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: options.Json = False,
) -> None:
    """Remove the checkpoints of finished runs; weights, scores, events and logs stay. Asks first."""
    opened = place.open()
    with _alone(opened):
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
        if not yes and not typer.confirm("Remove them?"):
            typer.echo("nothing was removed")
            return
        remove([one.path for one in found])
        typer.echo(f"removed {megabytes:,.1f} MB")


def _busy(store: Store) -> set[str]:
    """Runs that wait or run, and those that they read: a trunk's checkpoint is the beginning of its branches."""
    with Queue(store.queue_db, create=False) as queue:
        found = {row.run_id for row in queue.status() if row.state in (State.WAITING, State.RUNNING)}
        for run_id in list(found):
            with contextlib.suppress(Damaged):
                found.update(queue.job(run_id).job.after)
    return found


def rebuild(
    place: Place,
    sink: Annotated[
        str | None, typer.Option("--sink", metavar="tensorboard|wandb", help="Write this sink again, not MLflow.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Write MLflow's database again from the runs' events and results; or a sink's files."""
    opened = place.open()
    if sink is not None:
        check_sink(sink)
    what, where = ("database", opened.mlflow_db) if sink is None else ("folder", folder_of(opened, sink))
    with _alone(opened):
        runs = list(tracked_runs(opened))
        problems = rebuild_tracking(opened, runs) if sink is None else _rebuild_sink(opened, sink, runs)
    written = len(runs) - len(problems)
    if as_json:
        print_json({what: str(where), "runs": written, "problems": problems})
    else:
        for line in problems:
            typer.echo(f"could not be written: {line}", err=True)
        typer.echo(f"{where}: {number(written, 'run')}")
    if problems:
        raise typer.Exit(exits.FAILED)


def _rebuild_sink(store: Store, sink: str, runs: Iterable[TrackedRun]) -> list[str]:
    """The sink's folder, new; returns what could not be written."""
    remove_folder(folder_of(store, sink))
    writer, problems = SinkProcess(store, sink), list[str]()
    for run in runs:
        try:
            writer.sync(run)
        except SinkError as error:
            problems.append(f"{run.run_id}: {error}")
    writer.close()
    return problems


def _alone(store: Store) -> contextlib.AbstractContextManager[None]:
    """Lock the store, so that no other command works on it meanwhile. Raises UserError if it holds no runs."""
    if not store.runs.is_dir():
        raise UserError(f"{store.root} is no store with runs. Name it with --store.")
    return store.coordinator_lock()
