"""`ablations queue`, `work` and `run`: from the plan to finished runs."""

from contextlib import closing

import typer

from ablations.cli import options as o
from ablations.cli.jobs import enqueue, prepare, wanted
from ablations.cli.progress import Live, plain_progress
from ablations.cli.report import print_table
from ablations.plan import Plan, PlannedRun
from experiments.jobs.background import Background
from experiments.jobs.coordinator import work
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.reporter import Summary
from experiments.jobs.slots import Slot, parse_slots
from experiments.store import Store
from experiments.tasks.load import load_task
from experiments.tracking import Tracker


def register(app: typer.Typer) -> None:
    app.command("run")(run)
    app.command("queue")(queue)
    app.command("work")(work_command)


def queue(
    study: o.StudyName,
    profile: o.Profile = None,
    corpus: o.Corpus = None,
    rows: o.Rows = None,
    seeds: o.Seeds = None,
    sets: o.Set = None,
    store: o.StoreDir = o.DEFAULT_STORE,
    state_dir: o.StateDir = None,
    stale: o.Stale = "keep",
    yes: o.Yes = False,
) -> None:
    """Queue what is missing of a table; `ablations work` trains it."""
    chosen = o.choose(study, profile, corpus, rows, seeds, sets, store, state_dir, many=yes)
    plan = chosen.plan
    _queue(chosen, plan, wanted(plan, stale), stale)


def work_command(
    devices: o.Devices = "auto", store: o.StoreDir = o.DEFAULT_STORE, state_dir: o.StateDir = None
) -> None:
    """Train and evaluate what is queued, until the queue is empty."""
    slots = parse_slots(devices)
    opened = Store.open(store, state_dir)
    _exit_if_bad(_work(opened, slots))


def run(
    study: o.StudyName,
    profile: o.Profile = None,
    corpus: o.Corpus = None,
    rows: o.Rows = None,
    seeds: o.Seeds = None,
    sets: o.Set = None,
    store: o.StoreDir = o.DEFAULT_STORE,
    state_dir: o.StateDir = None,
    devices: o.Devices = "auto",
    stale: o.Stale = "keep",
    yes: o.Yes = False,
    as_json: o.Json = False,
) -> None:
    """Train and evaluate what is missing of a table, then print it."""
    chosen = o.choose(study, profile, corpus, rows, seeds, sets, store, state_dir, many=yes)
    run_chosen(chosen, devices, stale, "json" if as_json else "markdown")


def run_chosen(chosen: o.Chosen, devices: str, stale: str, format_: str, show: bool = True) -> None:
    """plan − valid results → queue → work → report. Exits 1 if a run failed, 130 if interrupted."""
    slots = parse_slots(devices)
    plan = chosen.plan
    runs = wanted(plan, stale)
    summary = Summary()
    if runs:
        with closing(LocalEngine()) as engine:  # its imports go on while the corpus is prepared
            _queue(chosen, plan, runs, stale)
            summary = _work(chosen.store, slots, engine)
    else:
        typer.echo(f"all {len(plan.runs)} runs are done: nothing to train", err=True)
    if show and not summary.interrupted:
        print_table(chosen, format_)
    _exit_if_bad(summary)


def _queue(chosen: o.Chosen, plan: Plan, runs: list[PlannedRun], stale: str) -> None:
    for note in plan.notes:
        typer.echo(f"note: {note}", err=True)
    prepare(chosen, runs, plain_progress)
    added = enqueue(chosen, plan, runs, stale)
    done = len(plan.runs) - len(runs)
    typer.echo(f"{len(plan.runs)} runs: {done} done, {added} queued now, {len(runs) - added} queued before", err=True)


def _work(store: Store, slots: list[Slot], engine: LocalEngine | None = None) -> Summary:
    with Live() as live:
        return work(store, slots, load_task, Background(lambda: Tracker(store)), live.update, engine=engine)


def _exit_if_bad(summary: Summary) -> None:
    if summary.interrupted:
        typer.echo("stopped; the same command goes on from the last checkpoints", err=True)
        raise typer.Exit(128 + summary.interrupted)
    if summary.failed:
        typer.echo(f"{summary.failed} failed: `ablations status` says why", err=True)
        raise typer.Exit(1)
