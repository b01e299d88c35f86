"""`ablations queue`, `work` and `run`: from the plan to finished runs."""

import time
from collections import Counter
from dataclasses import replace
from typing import Annotated

import typer

from ablations.cli import exits, options
from ablations.cli.progress import Live, Watched, work_on
from ablations.cli.report import print_table
from ablations.cli.terminal import plain_progress, print_json, say
from ablations.plan.planned import Plan, PlannedRun
from ablations.service.enqueue import wanted
from ablations.service.forecast import forecast
from ablations.service.selected import Place, Selected, Selectors, choose, device_count
from ablations.service.shares import user_name
from ablations.service.smoke import smoke as tried
from ablations.service.table_options import TableOptions
from ablations.service.tables import BY_STUDY
from ablations.service.train import Training, options_for, queue_runs
from ablations.service.work import WorkOptions, complete_mlflow, engine_settings
from ablations.study.messages import duration, number
from experiments.errors import UserError
from experiments.jobs.coordinator.reporter import Summary
from experiments.jobs.coordinator.watch import HANG_S
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.trust import executes
from experiments.store.layout import Store


def queue(
    study: options.StudyName,
    selectors: Selectors,
    devices_per_run: options.DevicesPerRun = "1",
    priority: options.Priority = 0,
    user: options.User = None,
    stale: options.Stale = "keep",
    yes: options.Yes = False,
    as_json: options.Json = False,
) -> None:
    """Queue the missing runs of a table; `ablations work` trains them."""
    wide = device_count(devices_per_run)
    chosen = choose(study, selectors, many=yes, used=True)
    chosen = replace(chosen, devices_per_run=wide, priority=priority, user=user_name(user))
    plan = chosen.plan
    added = queue_runs(chosen, plan, wanted(plan, stale), stale, plain_progress, say)
    if as_json:
        print_json(added)


def work_command(
    devices: options.Devices = "auto",
    *,
    place: Place,
    hang_after: options.HangAfter = HANG_S / 60,
    notify: options.Notify = None,
    sink: options.Sinks = None,
    engine: options.EngineName = "local",
    engine_set: options.EngineSet = None,
    address: options.Address = None,
    workers: options.Workers = None,
    setup: options.Setup = None,
    detach: Annotated[bool, typer.Option("--detach", help="Submit to the cluster and return at once.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="STUDY", help="Run this study's own code, queued by another user; repeatable."),
    ] = None,
) -> None:
    """Train and evaluate the queued runs until the queue is empty.

    With --detach the runs continue in the cluster without a coordinator. `ablations status`, or the same command again,
    collects the results of ended runs; the same command also submits again what failed on the way.
    """
    settings = engine_settings(engine_set, address)
    working = WorkOptions(devices, engine, settings, hang_after * 60, notify, sink or (), workers, setup or ())
    if detach and engine == "local":
        raise UserError("--detach is for clusters: on this machine, runs end with the coordinator.")
    opened = place.open(create=True)
    for study in trust or ():
        _trust(opened, study)
    summary = work_on(opened, working, "submitted" if detach else "empty")
    if not summary.interrupted:
        complete_mlflow(opened, say)
    _exit_if_bad(summary)
    if detach:
        typer.echo(f"submitted; `ablations status {place.where}` shows their progress", err=True)


def run(
    study: options.StudyName,
    selectors: Selectors,
    devices: options.Devices = "auto",
    devices_per_run: options.DevicesPerRun = "1",
    priority: options.Priority = 0,
    user: options.User = None,
    stale: options.Stale = "keep",
    yes: options.Yes = False,
    hang_after: options.HangAfter = HANG_S / 60,
    notify: options.Notify = None,
    sink: options.Sinks = None,
    engine: options.EngineName = "local",
    engine_set: options.EngineSet = None,
    address: options.Address = None,
    workers: options.Workers = None,
    setup: options.Setup = None,
    max_hours: Annotated[
        float | None, typer.Option(metavar="H", min=0.0, help="Refuse to start if the runs would take longer.")
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke", help="Only try: two steps and two sentences of every row, then the table's skeleton; keeps none."
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Train and evaluate the missing runs of a table, then print it."""
    wide = device_count(devices_per_run)
    chosen = choose(study, selectors, many=yes, used=True)
    chosen = replace(chosen, devices_per_run=wide, priority=priority, user=user_name(user))
    working = options_for(
        chosen,
        devices,
        engine,
        engine_settings(engine_set, address),
        hang_after * 60,
        notify,
        sink or (),
        workers,
        setup or (),
        stale=stale,
        max_hours=max_hours,
        progress=plain_progress,
        say=say,
    )
    format_ = "json" if as_json else ""
    if smoke:
        _try_all(chosen, working, format_)
    else:
        run_chosen(chosen, working, stale, format_)


def _try_all(chosen: Selected, working: WorkOptions, format_: str) -> None:
    """Two steps of every row. Exits 1 if one failed, with 128 + the signal if interrupted."""
    began = time.monotonic()
    with tried(chosen, plain_progress) as small:
        with Live(small.store) as live:
            summary = working.start(small.store, "empty", live.update, tracked=False)
        failed = {} if summary.interrupted else small.failed()
        rows = dict.fromkeys(run.row for run in small.runs)
    print_table(chosen, format_)
    for row, why in failed.items():
        typer.echo(f"{row}: {why}", err=True)
    tried_in = (
        f"two steps of {number(len(rows), 'row')} in {duration(time.monotonic() - began)}; nothing of them is kept"
    )
    typer.echo(f"{tried_in}; {len(failed) or 'none'} failed", err=True)
    if summary.interrupted:
        raise typer.Exit(exits.INTERRUPTED + summary.interrupted)
    if failed:
        raise typer.Exit(exits.FAILED)


def run_chosen(
    chosen: Selected,
    working: WorkOptions | str,
    stale: str,
    format_: str,
    show: bool = True,
    printing: TableOptions = BY_STUDY,
) -> None:
    """plan − valid results → queue → work → report. Exits 1 if a run failed, with 128 + the signal if interrupted."""
    working = WorkOptions(working) if isinstance(working, str) else working

    def work(plan: Plan, runs: list[PlannedRun]) -> Summary:
        return work_on(chosen.store, working, watched=_watched(chosen, plan, runs, working))

    summary = Training(chosen, stale, work, plain_progress, say).run()
    if show and not summary.interrupted:
        print_table(chosen, format_, printing=printing)
    _exit_if_bad(summary)


def _watched(chosen: Selected, plan: Plan, runs: list[PlannedRun], working: WorkOptions) -> Watched:
    """The table, for the view of its progress, with the time that measurements of this store predict."""
    expected = forecast(chosen, plan, runs, working.slots).makespan_s if working.engine == "local" else None
    return Watched(plan.study.name, {run.run_id for run in plan.trainings}, expected)


def _trust(store: Store, study: str) -> None:
    """Allow a study's own commands and tasks, queued by another user or from another machine. Raises UserError."""
    with Queue(store.queue_db) as queue:
        studies = sorted({member.study for row in queue.status() for member in row.members})
        jobs = queue.trust(study)
    if study not in studies:
        raise UserError(f"--trust {study}: no such study is queued. Queued studies: {', '.join(studies) or 'none'}.")
    for what, count in Counter(map(executes, jobs)).items():
        typer.echo(f"trusted from now on, in {number(count, 'run')} of {study}: {what}", err=True)
    if not jobs:
        typer.echo(f"{study}: nothing to trust, because none of its runs is held for its code", err=True)


def _exit_if_bad(summary: Summary) -> None:
    if summary.interrupted:
        typer.echo("stopped; the same command continues from the last checkpoints", err=True)
        raise typer.Exit(exits.INTERRUPTED + summary.interrupted)
    if summary.failed:
        typer.echo(f"{summary.failed} failed; `ablations status` shows why", err=True)
    if summary.left:
        typer.echo(f"{number(summary.left, 'run')} stay queued; the same command continues", err=True)
    if summary.failed or summary.left:
        raise typer.Exit(exits.FAILED)
