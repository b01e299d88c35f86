"""Commands that queue, train and score runs: `ablations queue`, `work`, `run`, `evaluate` and `tune`."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from ablations.cli import options
from ablations.cli.progress import Live, Watched, work_on
from ablations.cli.report import print_table
from ablations.cli.terminal import FAILED, INTERRUPTED, answer, plain_progress, print_json, say
from ablations.planning.plan import Plan, PlannedRun
from ablations.service.coordination import WorkOptions, complete_mlflow
from ablations.service.detached import hand_over, in_turn
from ablations.service.enqueue import enqueue, prepare, trained_again, wanted
from ablations.service.forecast import forecast
from ablations.service.preflight import missing_precisions, paragraphs, warnings
from ablations.service.selected import Queueing, Selected, Selectors, StoreOptions, choose, plan_with_states
from ablations.service.tables import BY_STUDY, TableOptions, nearest_with_results, table_of
from ablations.service.train import check, queue_runs, train
from ablations.service.train import smoke as tried
from ablations.service.trials import Trials
from ablations.study.overrides import setting_names
from ablations.study.selectors import Selection
from ablations.study.tuning import SETS, notes_of, tune_of, with_tuned
from experiments.errors import UserError
from experiments.jobs.attempts.outcomes import printed
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.repeated_failures import lines_in_short
from experiments.jobs.coordinator.reporter import Summary
from experiments.jobs.coordinator.work import work
from experiments.jobs.devices.slots import Slot, parse_slots
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.trust import executes
from experiments.messages import duration, number, some_names
from experiments.store import ledger
from experiments.store.layout import Store
from experiments.tasks.load import task_of
from experiments.tracking.mlflow import Tracker


def queue(study: options.StudyName, *, selectors: Selectors, queueing: Queueing, as_json: options.Json = False) -> None:
    """Queue the missing runs of a table; `ablations work` trains them."""
    chosen = queueing.choose(study, selectors)
    plan = chosen.plan
    added = queue_runs(chosen, plan, wanted(plan, queueing.stale), queueing.stale, plain_progress, say)
    if as_json:
        print_json(added)


def work_command(
    *,
    working: WorkOptions,
    store_options: StoreOptions,
    detach: Annotated[bool, typer.Option("--detach", help="Submit to the cluster and return at once.")] = False,
    trust: Annotated[
        list[str] | None,
        typer.Option("--trust", metavar="STUDY", help="Run code of this study that another user queued; repeatable."),
    ] = None,
    drain: Annotated[
        bool,
        typer.Option(
            "--drain", help="Train nothing; let the command that trains in this store end after its running runs."
        ),
    ] = False,
) -> None:
    """Train and evaluate the queued runs until the queue is empty.

    With --detach, the runs continue in the cluster after this command has ended. `ablations status` collects the
    results of ended runs. The same command again also submits runs that were interrupted.

    With --drain, this command trains nothing. The command that trains in the store starts no more runs, and ends after
    its running ones. The others stay queued for the next `ablations work`.
    """
    if drain:
        if detach or trust or replace(working, sinks=None) != WorkOptions():
            raise UserError(
                "--drain is a request to the command that trains in the store. Leave out all options except --store, "
                "--state-dir and --because."
            )
        _drain(store_options.open())
        return
    if detach and working.engine == "local":
        raise UserError("--detach is only for clusters. On this machine, use `ablations run STUDY --detach`.")
    assert working.slots  # reports a mistake in --devices before a store is created
    opened = store_options.open(create=True)
    for study in trust or ():
        _trust(opened, study)
    summary = work_on(opened, working, "submitted" if detach else "empty")
    if not summary.interrupted:
        complete_mlflow(opened, say)
    _exit_if_bad(summary)
    if detach:
        typer.echo(f"submitted; see their progress with `ablations status {store_options.where}`", err=True)


def _drain(store: Store) -> None:
    """Ask the store's coordinator to start no more runs."""
    holder = store.coordinator()
    if not holder:
        typer.echo(f"nothing to drain: no command is training in {store.root}")
        return
    ledger.append(store, "drain", run_ids=[])
    with Queue(store.queue_db) as queue:
        queue.drain()
    typer.echo(f"draining: {holder} starts no new runs and ends after its running ones")


def run(
    study: options.StudyName,
    *,
    selectors: Selectors,
    queueing: Queueing,
    working: WorkOptions,
    max_hours: Annotated[
        float | None,
        typer.Option(metavar="H", min=0.0, help="Refuse to start if the runs are predicted to take more hours."),
    ] = None,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke", help="Dry run: train two steps and evaluate two sentences of every row; nothing is saved."
        ),
    ] = False,
    detach: Annotated[
        bool,
        typer.Option(
            "--detach",
            help="Return at once and train in a background process.",
            rich_help_panel="Store and queue",
        ),
    ] = False,
    turn: Annotated[bool, typer.Option("--in-turn", hidden=True)] = False,  # set in the process that --detach starts
    as_json: options.Json = False,
    printing: TableOptions,
) -> None:
    """Train and evaluate the missing runs of a table, then print it."""
    if detach and smoke:
        raise UserError("--detach and --smoke cannot be combined. Give one of them.")
    chosen = queueing.choose(study, selectors)
    check(chosen, working, stale=queueing.stale, max_hours=max_hours, progress=plain_progress, say=say)
    format_ = "json" if as_json else ""
    if smoke:
        _try_all(chosen, working, format_)
    elif detach and not turn:
        _detach(chosen, queueing.stale, as_json)
    else:
        run_chosen(chosen, working, queueing.stale, "" if turn else format_, printing=printing, turn=turn)


def _detach(chosen: Selected, stale: str, as_json: bool) -> None:
    """Queue the missing runs, start a background process that trains them, and print the next commands."""
    plan, store = chosen.plan, chosen.store
    runs, holder, pid, log = wanted(plan, stale), store.coordinator(), None, None
    counts = {"done": len(plan.trainings), "queued_now": 0, "queued_before": 0}
    if runs:
        counts = queue_runs(chosen, plan, runs, stale, plain_progress, say)
        pid, log = hand_over(store)
    ask = [f"ablations {verb} {chosen.to_paste}" for verb in ("status", "report")]
    facts = {
        "study": plan.study.name, "profile": plan.profile, "store": str(store.root.absolute()),
        "run_ids": [run.run_id for run in runs], **counts, "pid": pid, "log": log and str(log.absolute()),
        "coordinator": holder or None, "next": ask,
    }  # fmt: skip
    takes = (
        (f"{holder} trains them; if it ends earlier, process {pid} continues")
        if holder
        else f"process {pid} trains them"
    )
    answer(as_json, facts, [f"{takes}; log: {log}" if runs else "nothing to train", *ask])


def _try_all(chosen: Selected, working: WorkOptions, format_: str) -> None:
    """Train two steps of every row. Exits with 1 if a row failed, with 128 + the signal if interrupted."""
    began = time.monotonic()
    with tried(chosen, plain_progress) as small:
        with Live(small.store) as live:
            summary = working.start(small.store, "empty", live.update, tracked=False)
        failed = {} if summary.interrupted else small.failed()
        rows = dict.fromkeys(run.row for run in small.runs)
    print_table(chosen, format_)
    for row, why in failed.items():
        typer.echo(f"{row}: {why}", err=True)
    took = duration(time.monotonic() - began)
    tried_rows = f"{len(rows) - len(failed)} of {number(len(rows), 'row')}"
    typer.echo(f"dry run: {tried_rows} passed in {took}, two steps each; nothing was saved", err=True)
    if summary.interrupted:
        raise typer.Exit(INTERRUPTED + summary.interrupted)
    if failed:
        raise typer.Exit(FAILED)


def run_chosen(
    chosen: Selected,
    working: WorkOptions,
    stale: str,
    format_: str,
    show: bool = True,
    printing: TableOptions = BY_STUDY,
    turn: bool = False,
) -> None:
    """Queue the runs without valid results, work on them, and print the table.

    Exits with 1 if a run failed or stayed in the queue, with 128 + the signal if interrupted. turn: whether to wait
    until no other coordinator works on the store, and then train the remaining runs.
    """

    def work(plan: Plan, runs: list[PlannedRun]) -> Summary:
        # The time is predicted only for this machine, from measurements in the store.
        here = working.engine == "local"
        expected = forecast(chosen, plan, runs, working.slots, stale).makespan_s if here else None
        so_far = partial(table_of, chosen, provisional=True, printing=replace(printing, notes="none"))
        watched = Watched(plan.study.name, {run.run_id for run in plan.trainings}, expected, so_far if show else None)
        start = partial(work_on, chosen.store, working, watched=watched)
        return in_turn(chosen.store, watched.run_ids, start) if turn else start()

    summary = train(chosen, stale, work, plain_progress, say, queued=turn)
    if show and not summary.interrupted:
        print_table(chosen, format_, printing=printing)
    _exit_if_bad(summary)


def _trust(store: Store, study: str) -> None:
    """Mark the jobs of a study that another user, or another machine, has queued as trusted, so that they may run.

    Raises UserError if the study is not queued.
    """
    with Queue(store.queue_db) as queue:
        studies = sorted({member.study for row in queue.status() for member in row.members})
        jobs = queue.trust(study)
    if study not in studies:
        raise UserError(f"--trust {study}: this study is not queued. Queued studies: {', '.join(studies) or 'none'}.")
    for what, count in Counter(map(executes, jobs)).items():
        typer.echo(f"trusted in {number(count, 'run')} of {study}: {what}", err=True)
    if not jobs:
        typer.echo(f"{study}: nothing to trust, because none of its runs waits for `--trust`", err=True)


def _exit_if_bad(summary: Summary) -> None:
    if summary.interrupted:
        typer.echo("stopped; continue from the last checkpoints with the same command", err=True)
        raise typer.Exit(INTERRUPTED + summary.interrupted)
    _say_failures(summary.failures)
    if summary.failed:
        typer.echo(f"{number(summary.failed, 'run')} failed; see why with `ablations status`", err=True)
    if summary.left:
        typer.echo(f"{number(summary.left, 'run')} still queued; continue with the same command", err=True)
    if summary.failed or summary.left:
        raise typer.Exit(FAILED)


REASONS, LINES = 3, 6  # maximum number of different reasons printed, and of lines of each


def _say_failures(failures: Mapping[str, str]) -> None:
    """Print the last lines of failed runs.

    If several runs failed with lines that differ only in numbers, print only the lines of the first run.
    """
    by_reason: dict[str, list[str]] = {}
    for run, error in failures.items():
        by_reason.setdefault(lines_in_short(error), []).append(run)
    for runs in list(by_reason.values())[:REASONS]:
        alike = some_names(runs[1:], 3)
        error = failures[runs[0]]
        lines = printed(error)[-LINES:] or error.splitlines()[-LINES:]
        head = f"{runs[0]} failed{f' (and {alike}, with the same reason)' if alike else ''}:"
        typer.echo("\n".join([head, *(f"  {line}" for line in lines)]), err=True)
    if len(by_reason) > REASONS:
        typer.echo(f"… and {number(len(by_reason) - REASONS, 'other reason')}", err=True)


def evaluate(
    study: options.StudyName,
    *,
    selectors: Selectors,
    devices: options.Devices = "auto",
    as_json: options.Json = False,
) -> None:
    """Score trained runs with other evaluation.* settings; never trains."""
    chosen = choose(study, selectors, there=True)
    plan = chosen.plan
    # Scoring a branch does not need its parent run.
    needed = {run_id for run in plan.runs for run_id in run.spec.members or (run.run_id,)}
    trained = {run_id for run_id in needed if chosen.store.result(run_id)}
    untrained = [run.name for run in plan.trainings if run.run_id in needed - trained]
    if untrained:
        raise UserError(
            f"Not trained in {chosen.store.root} with these settings: {', '.join(untrained)}. Train them with "
            "`ablations run`, or leave them out with --rows. `evaluate` never trains; only evaluation.* settings may "
            f"differ. {nearest_with_results(study, selectors, plan)}".rstrip()
        )
    members = [run for run in wanted(plan, "keep") if run.read_by]
    if again := trained_again(chosen, [*plan.runs, *members]):
        raise UserError(
            f"{', '.join(dict.fromkeys(run.row for run in again))}: the training kept too few checkpoints for this "
            "evaluation.checkpoint. Use `ablations run` with the same options, because `evaluate` never trains."
        )
    working = WorkOptions(devices=devices)
    todo = wanted(plan, "keep")
    if lacking := missing_precisions(chosen, todo, working.slots):
        raise UserError(paragraphs(lacking, plan.runs))
    for warning in warnings(chosen, todo, working.slots):
        say(f"note: {warning}")
    run_chosen(chosen, working, "keep", "json" if as_json else "")


def tune(
    study: options.StudyName,
    *,
    selectors: Selectors,
    devices: options.Devices = "auto",
    queueing: Annotated[Queueing, options.Without(("devices_per_run", "priority", "stale"))],
    trials: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Trials of each row; the study's number if unset.")
    ] = None,
    format_: Annotated[
        str, typer.Option("--format", metavar="F", help="Format of the table: see `ablations report`.")
    ] = "",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the table to a file.")] = None,
    as_json: options.Json = False,
) -> None:
    """Tune each row on the development set, train it with the best settings, print the table.

    The study gives the number of trials and the ranges. A trial is an ordinary run. After an interruption the same
    command continues.
    """
    slots = parse_slots(devices)
    chosen = queueing.choose(study, selectors)
    selected = selectors.selection()
    budget = trials or tune_of(chosen.study, chosen.task).trials

    def queue_tuned() -> None:
        """Queue the tuned rows as soon as the last trial ends, so that no slot is idle."""
        tuned = _tuned(chosen, selected, searching)
        plan = tuned.plan
        enqueue(tuned, plan, wanted(plan, "keep"), "keep")

    searching = Trials(chosen, selected, budget, len(slots), queue_tuned)
    if not searching.complete:
        _search(chosen, searching, slots)
    tuned = _tuned(chosen, selected, searching)
    format_ = "json" if as_json else format_
    printing = TableOptions(notes="full")  # the notes describe the search
    run_chosen(tuned, WorkOptions(devices=devices), "keep", format_, show=out is None, printing=printing)
    if out is not None:
        print_table(tuned, format_, out, printing=printing)


def _search(chosen: Selected, searching: Trials, slots: list[Slot]) -> None:
    """Run trials until every row's budget is spent.

    Exits with 128 + the signal if interrupted, with 1 if a failed trial has stopped the search of a row.
    """
    prepare(chosen, chosen.plan.runs, plain_progress)
    spent = {row: len(search.trials) - len(search.running) for row, search in searching.searches.items()}
    typer.echo(
        f"{number(len(spent), 'row')}, {number(searching.trials, 'trial')} each: {sum(spent.values())} done", err=True
    )
    with Live(chosen.store) as live:
        background = Background(lambda: Tracker(chosen.store))
        summary = work(chosen.store, slots, task_of, background, live.update, refill=searching.refill)
    if summary.interrupted:
        typer.echo("stopped; continue with the same command", err=True)
        raise typer.Exit(INTERRUPTED + summary.interrupted)
    for row, why in searching.given_up.items():
        typer.echo(f"{row}: tuning stopped, because a trial failed: {why}", err=True)
    if not searching.complete:
        typer.echo("see why with `ablations status`; the same command tries failed trials again", err=True)
        raise typer.Exit(FAILED)


def _tuned(chosen: Selected, selected: Selection, searching: Trials) -> Selected:
    """Return the selection with tuned rows. If the task has a setting for sets, the rows are also scored on test sets.

    Raises UserError if no trial of a row gave a score.
    """
    lost = [row for row, search in searching.searches.items() if searching.budget(row) and search.best is None]
    if lost:
        raise UserError(
            f"No trial of {', '.join(lost)} gave a score, so no settings can be chosen. Change the ranges of [tune]."
        )
    notes = notes_of(searching.searches, searching.trials, searching.column)
    study, task, store = with_tuned(chosen.study, searching.best(), notes), chosen.task, chosen.store
    asked: dict[str, object] = {}
    if SETS in setting_names(task.config_type):
        asked[SETS] = [searching.tune.set, *searching.tune.test]
    final = replace(selected, overrides={**asked, **selected.overrides})

    replan = partial(plan_with_states, study, final, task, store)
    return Selected(study=study, task=task, store=store, replan=replan, columns=chosen.columns)
