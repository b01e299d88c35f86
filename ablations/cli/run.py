"""`ablations queue`, `work` and `run`: from the plan to finished runs."""

from collections import Counter
from dataclasses import replace
from typing import Annotated

import typer

from ablations.cli import options as o
from ablations.cli import working as w
from ablations.cli.forecast import refuse_above
from ablations.cli.jobs import enqueue, prepare, say_trained_again, trained_again, wanted
from ablations.cli.obstacles import crowded, refuse
from ablations.cli.progress import plain_progress
from ablations.cli.report import print_table
from ablations.cli.sharing import as_one, settle
from ablations.cli.working import Working
from ablations.messages import number
from ablations.plan import Plan, PlannedRun
from experiments.errors import UserError
from experiments.jobs.queue import Queue
from experiments.jobs.reporter import Summary
from experiments.jobs.trust import executes
from experiments.store import Store


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
    devices_per_run: o.DevicesPerRun = "1",
    priority: o.Priority = 0,
    stale: o.Stale = "keep",
    yes: o.Yes = False,
) -> None:
    """Queue what is missing of a table; `ablations work` trains it."""
    wide = o.device_count(devices_per_run)
    chosen = o.choose(study, profile, corpus, rows, seeds, sets, store, state_dir, many=yes)
    chosen = replace(chosen, devices_per_run=wide, priority=priority)
    plan = chosen.plan
    _queue(chosen, plan, wanted(plan, stale), stale)


def work_command(
    devices: o.Devices = "auto",
    store: o.StoreDir = o.DEFAULT_STORE,
    state_dir: o.StateDir = None,
    hang_after: w.HangAfter = w.DEFAULT_HANG_MIN,
    notify: w.Notify = None,
    engine: w.EngineName = "local",
    engine_set: w.EngineSet = None,
    address: w.Address = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit to the cluster and return.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            "--trust", metavar="STUDY", help="Run this study's own code, queued by somebody else; repeatable."
        ),
    ] = None,
) -> None:
    """Train and evaluate what is queued, until the queue is empty.

    With --detach the runs go on in the cluster alone: `ablations status`, or the same command again, takes in what has
    ended meanwhile, and the same command submits what has to be done again.
    """
    working = Working(devices, engine, w.engine_settings(engine_set, address), hang_after * 60, notify)
    if detach and engine == "local":
        raise UserError("--detach is for clusters: on this machine runs end with the process that works on the queue.")
    opened = Store.open(store, state_dir)
    for study in trust or ():
        _trust(opened, study)
    _exit_if_bad(working.start(opened, "submitted" if detach else "empty"))
    if detach:
        typer.echo(f"submitted; `ablations status {o.where(store, state_dir)}` says how far they are", err=True)


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
    devices_per_run: o.DevicesPerRun = "1",
    priority: o.Priority = 0,
    stale: o.Stale = "keep",
    yes: o.Yes = False,
    hang_after: w.HangAfter = w.DEFAULT_HANG_MIN,
    notify: w.Notify = None,
    engine: w.EngineName = "local",
    engine_set: w.EngineSet = None,
    address: w.Address = None,
    max_hours: Annotated[
        float | None, typer.Option(metavar="H", min=0.0, help="Refuse to begin what would take longer than this.")
    ] = None,
    as_json: o.Json = False,
) -> None:
    """Train and evaluate what is missing of a table, then print it."""
    wide = o.device_count(devices_per_run)
    chosen = o.choose(study, profile, corpus, rows, seeds, sets, store, state_dir, many=yes)
    chosen = replace(chosen, devices_per_run=wide, priority=priority)
    here = engine == "local"
    one = as_one(devices) if here else devices
    working = Working(one, engine, w.engine_settings(engine_set, address), hang_after * 60, notify)
    todo = wanted(chosen.plan, stale)
    if here:
        refuse(chosen, todo, working.slots)
        if warning := crowded(working.slots):
            typer.echo(f"note: {warning}", err=True)
    if one != devices:
        if devices_per_run != "1":
            raise UserError(
                f"--devices {devices} measures how many runs share a device, --devices-per-run {devices_per_run} gives "
                "a run several: name a number of runs a device, as cuda:*x2, or leave one of the two out."
            )
        working = replace(working, devices=settle(devices, chosen, todo))
    if max_hours is not None and todo:
        typer.echo(refuse_above(max_hours, chosen, todo, working.slots, here=here), err=True)
    run_chosen(chosen, working, stale, "json" if as_json else "markdown")


def run_chosen(chosen: o.Chosen, working: Working | str, stale: str, format_: str, show: bool = True) -> None:
    """plan − valid results → queue → work → report. Exits 1 if a run failed, 130 if interrupted."""
    working = Working(working) if isinstance(working, str) else working
    plan = chosen.plan
    runs = wanted(plan, stale)
    summary = Summary()
    if runs:
        _queue(chosen, plan, runs, stale)
        summary = working.start(chosen.store)
    else:
        typer.echo(f"{number(len(plan.runs), 'run')}, all done: nothing to train", err=True)
    if show and not summary.interrupted:
        print_table(chosen, format_)
    _exit_if_bad(summary)


def _queue(chosen: o.Chosen, plan: Plan, runs: list[PlannedRun], stale: str) -> None:
    for note in filter(None, [*plan.notes, say_trained_again(trained_again(chosen, runs))]):
        typer.echo(f"note: {note}", err=True)
    prepare(chosen, runs, plain_progress)
    added = enqueue(chosen, plan, runs, stale)
    done = len(plan.runs) - len(runs)
    typer.echo(
        f"{number(len(plan.runs), 'run')}: {done} done, {added} queued now, {len(runs) - added} queued before", err=True
    )


def _trust(store: Store, study: str) -> None:
    """Allow the own commands and tasks of a study that another user, or another machine's, has queued."""
    queue = Queue(store.queue_db)
    try:
        studies = sorted({member.study for row in queue.status() for member in row.members})
        jobs = queue.trust(study)
    finally:
        queue.close()
    if study not in studies:
        raise UserError(f"--trust {study}: no study of that name is queued. Queued: {', '.join(studies) or 'none'}.")
    for what, count in Counter(map(executes, jobs)).items():
        typer.echo(f"trusted from now on, in {number(count, 'run')} of {study}: {what}", err=True)
    if not jobs:
        typer.echo(f"{study}: nothing to trust, no run of it is held for its code", err=True)


def _exit_if_bad(summary: Summary) -> None:
    if summary.interrupted:
        typer.echo("stopped; the same command goes on from the last checkpoints", err=True)
        raise typer.Exit(128 + summary.interrupted)
    if summary.failed:
        typer.echo(f"{summary.failed} failed: `ablations status` says why", err=True)
        raise typer.Exit(1)
