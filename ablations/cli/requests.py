"""`ablations cancel`, `retry` and `drain`: requests to the coordinator, at any time, from any shell."""

from collections.abc import Callable, Iterable
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service.queued_runs import chosen, label, labels
from ablations.service.selected import Place
from experiments.jobs.queue.job import JobStatus
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.store.layout import Store

Names = Annotated[list[str], typer.Argument(metavar="RUN…", help="Rows, studies, run_ids, or all.")]
MaybeNames = Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Rows, studies or run_ids; all if unset.")]


def cancel(runs: Names, place: Place, as_json: options.Json = False) -> None:
    """Take runs out of the queue; running ones save a checkpoint and end. `retry` queues them again."""
    opened = place.open()
    rows = chosen(opened, runs, (State.WAITING, State.RUNNING))
    _ask(opened, rows, Queue.cancel)
    if as_json:
        print_json(_records(rows))
        return
    if not rows:
        typer.echo("nothing to cancel: none of these runs is waiting or running")
        return
    typer.echo(f"cancelled, or requested to end after a checkpoint:\n{labels(rows)}", nl=False)


def retry(runs: MaybeNames = None, *, place: Place, as_json: options.Json = False) -> None:
    """Queue failed and cancelled runs again; they resume from their checkpoints. Without names: all of them."""
    opened = place.open()
    rows = chosen(opened, runs or ["all"], (State.FAILED, State.CANCELLED))
    _ask(opened, rows, Queue.retry)
    if as_json:
        print_json(_records(rows))
        return
    for row in rows:
        typer.echo(f"queued again: {label(row)}")
    if not rows:
        typer.echo("nothing to retry: none of these runs failed or was cancelled")
    elif not opened.coordinator():
        typer.echo(f"`ablations work {place.where}` starts {'it' if len(rows) == 1 else 'them'}")


def drain(place: Place, as_json: options.Json = False) -> None:
    """Let running runs finish and start no others; the rest stays queued for the next `ablations work`."""
    opened = place.open()
    holder = opened.coordinator()
    if holder:
        _ask(opened, [], lambda queue, _: queue.drain())
    if as_json:
        print_json({"coordinator": holder or None})
    elif not holder:
        typer.echo(f"no coordinator works on {opened.root}: nothing to drain")
    else:
        typer.echo(f"{holder} finishes its running runs, starts no others and ends")


def _records(rows: Iterable[JobStatus]) -> list[dict[str, str]]:
    """The runs of a request, with the states that they were in."""
    return [{"run_id": row.run_id, "row": label(row), "state": row.state.value} for row in rows]


def _ask(store: Store, rows: Iterable[JobStatus], request: Callable[[Queue, list[str]], object]) -> None:
    with Queue(store.queue_db) as queue:
        request(queue, [row.run_id for row in rows])
