"""`ablations status`: waiting runs with the reason, running ones with progress, ended ones with the outcome."""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from ablations.cli import options
from ablations.cli.tables import note
from ablations.cli.terminal import print_json, say, unguarded, visible
from ablations.plan.planned import Plan
from ablations.service.collect_detached import collect_detached
from ablations.service.queued_runs import label
from ablations.service.selected import Selected, Selectors, choose
from ablations.service.store_tables import store_tables
from ablations.service.work import not_in_mlflow
from ablations.study.messages import duration, number
from experiments.errors import UserError
from experiments.events.damage import damaged_events
from experiments.jobs.queue.forecast import left_s
from experiments.jobs.queue.job import JobStatus
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.shares import load_shares
from experiments.jobs.queue.states import State
from experiments.store.layout import Store
from experiments.tracking.rebuild import lacking

SHOWN = 20  # waiting and cancelled runs listed; the rest is only counted
WATCH_S = 2.0


def status(
    study: options.LastStudy = None,
    *,
    selectors: Selectors,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds; Ctrl-C ends it.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show the queue: waiting runs with the reason, running ones with progress, failed ones with the log's end.

    With STUDY, the state of its table, and of the queue only its runs; without, the whole queue, and the state of the
    last table used.
    """
    opened = selectors.open()
    collect_detached(opened)
    table = _table(study, selectors) if study or not as_json else None
    plan = table[1] if table else None  # once: a plan of 10,000 runs takes seconds
    only = {run.run_id for run in plan.trainings} if plan and study else None
    if as_json:
        print_json(_as_json(opened, only))
        return
    head = [_of_plan(table[1]), *_no_longer(*table)] if table else []
    if not watch:
        typer.echo("\n".join(_lines(opened, head, only)))
        try:
            if not opened.coordinator() and (count := len(lacking(opened))):
                typer.echo(not_in_mlflow(count, selectors.where))
        except UserError as error:  # of MLflow's database
            say(str(error))
        return
    with Live(console=Console(file=unguarded(sys.stdout)), auto_refresh=False) as live:
        while True:
            live.update(Text(visible("\n".join(_lines(opened, head, only)))), refresh=True)
            time.sleep(WATCH_S)
            if table:
                head[0] = _of_plan(table[0].plan)


def _table(study: str | None, selectors: Selectors) -> tuple[Selected, Plan] | None:
    """The named table, else the last one used; None if there is none, or if it can no longer be planned."""
    if study is not None:
        named = choose(study, selectors, there=True, used=True)
        return named, named.plan
    try:
        last = choose(*selectors.with_last(None, say), there=True)
        return last, last.plan
    except UserError:  # the queue is shown without it
        return None


def _lines(store: Store, head: list[str], only: set[str] | None) -> list[str]:
    with Queue(store.queue_db, create=False) as queue:
        return head + (_of_queue(store, queue) if only is None else _of_runs(store, queue, only))


def _of_plan(plan: Plan) -> str:
    """ "table3, profile demo: 20 runs: 12 finished, 1 running, 7 waiting"."""
    counts = Counter(run.state for run in plan.trainings)
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{plan.study.name}, profile {plan.profile}: {number(len(plan.trainings), 'run')}: {words}"


def _no_longer(table: Selected, plan: Plan) -> list[str]:
    """Runs of the table that its study does not have any more."""
    held = [one for one in store_tables(table.place, plan.study.name) if one.name.profile == plan.profile]
    return [f"  {note(one)}: {number(len(one.runs), 'run')} of {', '.join(one.rows)}" for one in held if note(one)]


def _of_runs(store: Store, queue: Queue, only: set[str]) -> list[str]:
    """The queue's lines about some runs; finished ones are counted with the table."""
    holder, draining, lines = store.coordinator(), "drain" in queue.notes(), []
    over = queue.over_quota(load_shares(store))
    waiting = queue.rows(State.WAITING, queue.counts()[State.WAITING])
    before = {row.run_id: place for place, row in enumerate(waiting)}
    for row in queue.status():
        if row.run_id not in only or row.state is State.FINISHED:
            continue
        why = f": {_why(row, before[row.run_id], holder, draining, over)}" if row.run_id in before else ""
        lines += [f"  {_line(row)}{why}", *(f"      {line}" for line in row.error.splitlines())]
    return lines


def _of_queue(store: Store, queue: Queue) -> list[str]:
    holder = store.coordinator()
    counts = queue.counts()
    if not any(counts.values()):
        return [f"nothing is queued in {store.root}"]
    lines = [", ".join(f"{counts[state]} {state.value}" for state in State if counts[state])]
    lines += [f"worked on by {holder}"] * bool(holder) + list(_left(queue))
    notes, over = queue.notes(), queue.over_quota(load_shares(store))
    lines += [line for name in sorted(notes) for line in notes[name].splitlines()]
    for row in queue.rows(State.RUNNING, counts[State.RUNNING]):
        lines.append(f"  {_line(row)}")
    for before, row in enumerate(queue.rows(State.WAITING, SHOWN)):
        lines.append(f"  {_line(row)}: {_why(row, before, holder, 'drain' in notes, over)}")
    if counts[State.WAITING] > SHOWN:
        lines.append(f"  … and {counts[State.WAITING] - SHOWN:,} more waiting")
    for row in queue.rows(State.CANCELLED, SHOWN) + queue.rows(State.FAILED, counts[State.FAILED]):
        lines.append(f"  {_line(row)}")
        lines += [f"      {line}" for line in row.error.splitlines()]
    return lines + list(_damaged(store, queue))


def _damaged(store: Store, queue: Queue) -> Iterator[str]:
    """Runs with unreadable lines in their events: these lines are lost, the others count."""
    found = list(damaged_events(store, queue.damaged_lines()))
    labels = {row.run_id: label(row) for row in queue.status()} if found else {}
    for run_id, attempt, line in found:
        yield f"  {labels.get(run_id, run_id)} attempt {attempt}: {line}"


def _left(queue: Queue) -> list[str]:
    seconds = left_s(queue)
    return [] if not seconds else [f"about {duration(seconds)} left at the present speed"]


def _line(row: JobStatus) -> str:
    step = f" step {row.step}/{row.total}" if row.step is not None and row.total else ""
    if row.state is not State.RUNNING:
        return f"{row.state.value:<9} {label(row)}{step}"
    since = f" for {duration(max(0.0, time.time() - row.started))} on {row.slot}" if row.started else ""
    left = f", about {duration(row.left_s)} of training left" if row.left_s is not None else ""
    return f"{row.state.value:<9} {label(row)}{step} {row.doing}{since}{left}"


def _why(row: JobStatus, before: int, holder: str, draining: bool, over: Mapping[str, str]) -> str:
    """The reason why a run waits. `over`: users whose quota is used up, with the reason."""
    if row.held:
        return row.held
    if row.user in over:
        return over[row.user]
    if not holder:
        gone_on = f" ({row.doing})" if row.doing else ""
        return f"no coordinator is running; start `ablations work`{gone_on}"
    if draining:
        return "no new run is started (drain)"
    return row.doing or (f"{before} before it" if before else "next, when a slot is free")


def _as_json(store: Store, only: set[str] | None = None) -> list[dict[str, Any]]:
    holder = store.coordinator()
    with Queue(store.queue_db, create=False) as queue:
        draining, before, plain = "drain" in queue.notes(), 0, []
        over = queue.over_quota(load_shares(store))
        damaged: dict[str, list[str]] = {}
        for run_id, _, line in damaged_events(store, queue.damaged_lines()):
            damaged.setdefault(run_id, []).append(line)
        for row in queue.status():
            value: dict[str, Any] = {**asdict(row), "members": [member._asdict() for member in row.members]}
            value["log"] = _log(row)
            value["damaged"] = damaged.get(row.run_id, [])
            value["why"] = ""
            if row.state is State.WAITING:
                value["why"] = _why(row, before, holder, draining, over)
                before += 1
            if only is None or row.run_id in only:
                plain.append(value)
        return plain


def _log(row: JobStatus) -> str | None:
    """Path of the last attempt's log, relative to the store."""
    return f"runs/{row.run_id}/attempts/{row.attempt:04d}/log.txt" if row.attempt else None
