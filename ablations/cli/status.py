"""`ablations status`: what waits, runs, has ended, and why."""

import json
import time
from collections import Counter
from dataclasses import asdict

import typer

from ablations.cli import options as o
from experiments.jobs.job import Row
from experiments.jobs.queue import Queue
from experiments.jobs.states import State
from experiments.store import Store


def register(app: typer.Typer) -> None:
    app.command("status")(status)


def status(store: o.StoreDir = o.DEFAULT_STORE, state_dir: o.StateDir = None, as_json: o.Json = False) -> None:
    """Show the queue: waiting and running with progress, finished, failed with the end of the log."""
    rows = _rows(Store.open(store, state_dir, create=False))
    if as_json:
        typer.echo(json.dumps([_plain(row) for row in rows], indent=1, ensure_ascii=False))
        return
    if not rows:
        typer.echo(f"nothing is queued in {store}")
        return
    counts = Counter(row.state for row in rows)
    typer.echo(", ".join(f"{counts[state]} {state.value}" for state in State if counts[state]))
    for row in rows:
        if row.state is not State.FINISHED:
            typer.echo(f"  {_line(row)}")
        if row.state is State.FAILED:
            typer.echo("".join(f"      {line}\n" for line in row.error.splitlines()), nl=False)


def _rows(store: Store) -> list[Row]:
    if not store.queue_db.exists():
        return []
    queue = Queue(store.queue_db, create=False)
    try:
        return queue.status()
    finally:
        queue.close()


def _plain(row: Row) -> dict[str, object]:
    return {**asdict(row), "members": [member._asdict() for member in row.members]}


def _line(row: Row) -> str:
    names = ", ".join(sorted({f"{member.study} {member.row}" for member in row.members})) or row.run_id
    step = f" step {row.step}/{row.total}" if row.step is not None and row.total else ""
    since = ""
    if row.state is State.RUNNING and row.started:
        since = f" for {time.time() - row.started:.0f} s on {row.slot}"
    return f"{row.state.value:<9} {names} seed {row.seed} ({row.run_id}){step} {row.doing}{since}"
