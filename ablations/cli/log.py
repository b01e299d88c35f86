"""`ablations log RUN`: a run's attempts, and the log of the last one."""

import time
from pathlib import Path
from typing import Annotated

import typer

from ablations.service.queued_runs import chosen, label, labels
from ablations.service.selected import Place
from experiments.errors import UserError
from experiments.events.event_log import Tail
from experiments.jobs.attempts.attempt import LOG
from experiments.jobs.queue.job import JobStatus
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.store.layout import Store

FOLLOW_S = 0.5
SPOKEN = ("resumed", "branched", "restarted", "checkpoint_skipped", "failed", "preempted")  # events that explain a run


def log(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A row (A-h16, A-h16:2) or the beginning of a run_id.")],
    place: Place,
    attempt: Annotated[int | None, typer.Option(metavar="N", min=1, help="Which attempt; the last if unset.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until the run ends.")] = False,
) -> None:
    """Show a run's attempts with their outcomes, and the log of the last attempt."""
    opened = place.open()
    rows = chosen(opened, [run])
    if len(rows) > 1:
        raise UserError(f"{run} selects {len(rows)} runs; name one by its run_id or its seed:\n{labels(rows)}")
    row, numbers = rows[0], opened.attempts(rows[0].run_id)
    typer.echo(f"{label(row)}: {row.state.value}")
    _print_attempts(opened, row)
    if not numbers:
        typer.echo("no attempt was made yet")
        return
    number = attempt or numbers[-1]
    if number not in numbers:
        raise UserError(f"{run} has no attempt {number}; there are {', '.join(map(str, numbers))}.")
    path = opened.attempt_folder(row.run_id, number) / LOG
    typer.echo(f"--- {path}")
    _print(opened, row.run_id, path, follow)


def _print_attempts(store: Store, row: JobStatus) -> None:
    with Queue(store.queue_db, create=False) as queue:
        history = queue.history(row.run_id)
    for made in history:
        steps = f" steps {made['first_step'] or 0}–{made['last_step']}" if made["last_step"] is not None else ""
        seconds = f" {max(0.0, made['ended'] - made['started']):.0f} s" if made["ended"] else ""
        outcome = made["outcome"] or "running"
        typer.echo(f"  attempt {made['number']} on {made['slot']}:{seconds}{steps} {outcome} {made['detail']}".rstrip())
        tail = Tail(store.attempt_folder(row.run_id, made["number"]))
        for event in tail.read():
            if event["kind"] in SPOKEN:
                typer.echo(f"    {_spoken(event)}")
        if tail.damaged:
            typer.echo(f"    {tail.damage(store.root)}")


def _spoken(event: dict[str, object]) -> str:
    words = {
        "resumed": "resumed at step {step}, from {path}",
        "branched": "begins with the state of run {run} after step {step}",
        "restarted": "restarted from step 0: {why}",
        "checkpoint_skipped": "skipped the checkpoint {path}: {reason}",
        "failed": "failed ({cls}): {message}",
        "preempted": "stopped at step {step}, after a checkpoint",
    }
    return words[str(event["kind"])].format_map(_Given(event))


class _Given(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def _print(store: Store, run_id: str, path: Path, follow: bool) -> None:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            while True:
                typer.echo(file.read(), nl=False)
                if not (follow and _runs(store, run_id)):
                    typer.echo(file.read(), nl=False)
                    return
                time.sleep(FOLLOW_S)
    except FileNotFoundError:
        typer.echo("the log is empty so far")
    except OSError as error:
        typer.echo(f"it cannot be read: {error.strerror}")


def _runs(store: Store, run_id: str) -> bool:
    return any(row.run_id == run_id and row.state is State.RUNNING for row in chosen(store, [run_id]))
