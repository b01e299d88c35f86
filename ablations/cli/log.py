"""`ablations log RUN`: a run's attempts, and the log of the last one."""

import codecs
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.terminal import print_json
from ablations.service.queued_runs import chosen, label, labels
from ablations.service.selected import Place
from experiments.errors import UserError
from experiments.events.event_log import Tail
from experiments.jobs.queue.job import JobStatus
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.store.layout import LOG, Store

FOLLOW_S = 0.5
RECENT = 10  # points of the curve that --follow begins with
SPOKEN = ("resumed", "branched", "restarted", "checkpoint_skipped", "failed", "preempted")  # events that explain a run


def log(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A row (A-h16, A-h16:2) or the beginning of a run_id.")],
    place: Place,
    attempt: Annotated[int | None, typer.Option(metavar="N", min=1, help="Which attempt; the last if unset.")] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Print new lines and points of the curve until the run ends.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show a run's attempts with their outcomes, and the log of the last attempt."""
    opened = place.open()
    rows = chosen(opened, [run])
    if len(rows) > 1:
        raise UserError(f"{run} selects {len(rows)} runs; name one by its run_id or its seed:\n{labels(rows)}")
    row, numbers = rows[0], opened.attempts(rows[0].run_id)
    if as_json:
        print_json(_record(opened, row, numbers))
        return
    typer.echo(f"{label(row)}: {row.state.value}")
    _print_attempts(opened, row)
    if not numbers:
        typer.echo("no attempt was made yet")
        return
    number = attempt or numbers[-1]
    if number not in numbers:
        raise UserError(f"{run} has no attempt {number}; there are {', '.join(map(str, numbers))}.")
    folder = opened.attempt_folder(row.run_id, number)
    typer.echo(f"--- {folder / LOG}")
    _print(opened, row.run_id, folder, follow)


def _record(store: Store, row: JobStatus, numbers: Iterable[int]) -> dict[str, Any]:
    with Queue(store.queue_db, create=False) as queue:
        attempts = queue.history(row.run_id)
    folders = [store.attempt_folder(row.run_id, number) for number in numbers]
    return {
        "run_id": row.run_id, "row": label(row), "state": row.state.value, "attempts": attempts,
        "logs": [str(folder / LOG) for folder in folders],
        "points": [
            {"attempt": number, "step": event["step"], **event["metrics"]}
            for number, folder in zip(numbers, folders, strict=True)
            for event in Tail(folder).read()
            if event["kind"] == "metrics"
        ],
    }  # fmt: skip


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
        "preempted": "stopped" if event.get("step") is None else "stopped at step {step}, after a checkpoint",
    }
    return words[str(event["kind"])].format_map(_Given(event))


class _Given(dict[str, object]):
    def __missing__(self, key: str) -> str:
        return "?"


def _print(store: Store, run_id: str, folder: Path, follow: bool) -> None:
    tail = Tail(folder)
    points = list(_points(tail))[-RECENT:] if follow else []
    try:
        with (folder / LOG).open("rb") as file:
            _echo(file)
            while follow:
                running = _runs(store, run_id)  # before reading: what it wrote last is read too
                for line in [*points, *_points(tail)]:
                    typer.echo(line)
                points = []
                if file.tell() > os.fstat(file.fileno()).st_size:  # its middle was left out
                    typer.echo("… the log was shortened …")
                    file.seek(0, os.SEEK_END)
                _echo(file)
                if not running:
                    return
                time.sleep(FOLLOW_S)
    except FileNotFoundError:
        typer.echo("the log is empty so far")
    except OSError as error:
        typer.echo(f"it cannot be read: {error.strerror}")


def _echo(file: IO[bytes]) -> None:
    """Print what is left of a file, which may have gigabytes in one line."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while data := file.read(1 << 16):
        typer.echo(decoder.decode(data), nl=False)
    typer.echo(decoder.decode(b"", final=True), nl=False)


def _points(tail: Tail) -> Iterator[str]:
    """The new points of the training curve."""
    for event in tail.read():
        if event["kind"] == "metrics":
            numbers = (
                f"{name} {value:.5g}" for name, value in event["metrics"].items() if isinstance(value, int | float)
            )
            yield f"step {event['step']:,}  {'  '.join(numbers)}"


def _runs(store: Store, run_id: str) -> bool:
    return any(row.run_id == run_id and row.state is State.RUNNING for row in chosen(store, [run_id]))
