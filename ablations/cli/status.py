"""Commands on the queue: `ablations status`, `log`, `cancel` and `retry`.

`status` shows why runs wait, the progress of running runs, and the errors of failed runs.
"""

import codecs
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ablations.cli import options
from ablations.cli.store import note
from ablations.cli.terminal import answer, print_json, reader_has_left, say
from ablations.planning.plan import Plan
from ablations.service.choose_run import NOT_TRAINING, chosen, label, labels, of_study
from ablations.service.detached import collect_detached
from ablations.service.selected import Selected, Selectors, StoreOptions, choose
from ablations.service.store_tables import store_tables
from experiments.errors import UserError
from experiments.events.event_log import Tail, damaged_events
from experiments.identity import seed_in_words
from experiments.jobs.attempts.attempt import log_tail
from experiments.jobs.attempts.liveness import observed
from experiments.jobs.queue.job import JobStatus, State
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.queue_connection import SHARING
from experiments.jobs.queue.time_left import left_s
from experiments.messages import duration, number
from experiments.store import ledger
from experiments.store.durable import open_regular
from experiments.store.layout import LOG, Store
from experiments.tracking.rebuild import lacking

ENDED = "its process ended without a result"  # why a run is interrupted
SHOWN = 20  # maximum number of waiting rows listed per reason, and of cancelled runs listed


def status(
    study: options.MaybeStudy = None,
    *,
    selectors: Selectors,
    as_json: options.Json = False,
) -> None:
    """Show the queue: waiting runs with the reason, running ones with progress, failed ones with the end of the log.

    With STUDY, show the state of its table, and only its runs of the queue.
    """
    opened = selectors.open()
    collect_detached(opened)
    table = choose(study, selectors, there=True) if study else None
    plan = table.plan if table else None  # computed once, because a plan of 10,000 runs takes seconds
    only = {run.run_id for run in plan.trainings} if plan else None
    work = f"ablations work {selectors.where}"
    command = f"ablations run {table.to_paste}" if table else work
    if as_json:
        print_json(_as_json(opened, command, only))
        return
    head = [_of_plan(plan), *_lines_on_outdated_runs(table, plan)] if table and plan else []
    with Queue(opened.queue_db, create=False) as queue:
        lines = _of_queue(opened, queue, command) if only is None else _of_runs(opened, queue, command, only)
    typer.echo("\n".join([*head, *lines]))
    try:
        if not opened.coordinator():
            for line in _lacking_in_mlflow(lacking(opened), work):
                typer.echo(line)
    except UserError as error:  # MLflow's database cannot be read
        say(str(error))


def _lacking_in_mlflow(found: Mapping[str, bool], command: str) -> Iterator[str]:
    """Yield a line on the finished runs that MLflow lacks, and one on the runs that MLflow shows in an older state.

    found: the result of `lacking`. command: the command that updates MLflow.
    """
    updated = sum(found.values())
    for count, older in ((len(found) - updated, False), (updated, True)):
        one = count == 1
        what = (
            f"{'has' if one else 'have'} rows or scores that are newer than"
            if older
            else f"{'is' if one else 'are'} not in"
        )
        does = f"{'updates' if older else 'adds'} {'it' if one else 'them'}"
        if count:
            yield f"{number(count, 'finished run')} {what} MLflow: `{command}` {does}"


def _of_plan(plan: Plan) -> str:
    """Return the numbers of a plan's runs by state: "table3, profile demo: 20 runs: 12 finished, 8 waiting"."""
    counts = Counter(run.state_in_words for run in plan.trainings)
    words = ", ".join(f"{count} {word}" for word, count in counts.items())
    return f"{plan.study.name}, profile {plan.profile}: {number(len(plan.trainings), 'run')}: {words}"


def _lines_on_outdated_runs(table: Selected, plan: Plan) -> list[str]:
    """Return lines on the runs in the store that the study no longer contains, or contains with other settings."""
    held = [one for one in store_tables(table.store_options, plan.study.name) if one.name.profile == plan.profile]
    return [f"  {note(one)}: {number(len(one.runs), 'run')} of {', '.join(one.rows)}" for one in held if note(one)]


def _of_runs(store: Store, queue: Queue, command: str, only: set[str]) -> list[str]:
    """Return the lines on the queued runs whose run_ids are in `only`. command: the command that trains them.

    Finished runs are left out, because `_of_plan` counts them.
    """
    waiting = [row for row in queue.rows(State.WAITING, queue.counts()[State.WAITING]) if row.run_id in only]
    lines = _notes(queue, store.coordinator(), (SHARING,)) if queue.counts()[State.RUNNING] else []
    lines += _waiting(store, queue, command, waiting)
    mine = [row for row in queue.status() if row.run_id in only]
    for row in observed(store, queue, mine):
        if row.state not in (State.FINISHED, State.WAITING):
            lines += [f"  {_line(row, command)}", *(f"      {line}" for line in row.error.splitlines())]
    return lines


def _of_queue(store: Store, queue: Queue, command: str) -> list[str]:
    holder = store.coordinator()
    counts = queue.counts()
    if not any(counts.values()):
        return [f"nothing is queued in {store.root}"]
    begun = observed(store, queue, queue.rows(State.RUNNING, counts[State.RUNNING]))
    counts |= {state: sum(row.state is state for row in begun) for state in (State.RUNNING, State.INTERRUPTED)}
    lines = [", ".join(f"{counts[state]} {state.value}" for state in State if counts[state])]
    lines += [f"training in {holder}"] * bool(holder)
    # Nobody knows how much of an interrupted run is lost.
    if not counts[State.INTERRUPTED] and (seconds := left_s(queue)):
        lines.append(f"about {duration(seconds)} left")
    lines += _notes(queue, holder)
    lines += [f"  {_line(row, command)}" for row in begun]
    lines += _waiting(store, queue, command, queue.rows(State.WAITING, counts[State.WAITING]))
    for row in queue.rows(State.CANCELLED, SHOWN) + queue.rows(State.FAILED, counts[State.FAILED]):
        lines.append(f"  {_line(row, command)}")
        lines += [f"      {line}" for line in row.error.splitlines()]
    return lines + list(_damaged(store, queue))


def _notes(queue: Queue, holder: str, names: Sequence[str] = ()) -> list[str]:
    """Return the coordinator's notes with these names, or all notes.

    The note on runs that share a GPU is returned only while a coordinator works.
    """
    notes = queue.notes()
    shown = [name for name in sorted(notes) if name in (names or notes) and (holder or name != SHARING)]
    return [line for name in shown for line in notes[name].splitlines()]


def _waiting(store: Store, queue: Queue, command: str, waiting: Sequence[JobStatus]) -> Iterator[str]:
    """Yield one line per reason for waiting, with the keys of the waiting rows, in the order of the queue."""
    why, causes = _reasons(store, queue, command), dict[str, dict[str, list[int]]]()
    studies = {member.study for row in waiting for member in row.members}
    for row in waiting:
        names = dict.fromkeys(
            member.row if len(studies) == 1 else f"{member.study} {member.row}" for member in row.members
        )
        key = " = ".join(names) or row.run_id
        causes.setdefault(why(row, None), {}).setdefault(key, []).append(row.seed)
    for cause, rows in causes.items():
        listed = [f"{key} ({_seeds(seeds)})" for key, seeds in rows.items()]
        more = f" and {number(len(listed) - SHOWN, 'more row')}" if len(listed) > SHOWN else ""
        yield f"  {State.WAITING.value:<9} {', '.join(listed[:SHOWN])}{more}: {cause}"


def _seeds(seeds: Sequence[int]) -> str:
    """Return seeds as text, such as "seed 2", "seeds 1, 2, 3" or "ensemble"."""
    first, *others = [seed_in_words(seed) for seed in seeds]
    return f"seeds {', '.join(map(str, sorted(seeds)))}" if others else first


def _damaged(store: Store, queue: Queue) -> Iterator[str]:
    """Yield one line per attempt whose event file has unreadable lines. The other lines of the file are still used."""
    found = list(damaged_events(store, queue.damaged_lines()))
    labels = {row.run_id: label(row) for row in queue.status()} if found else {}
    for run_id, attempt, line in found:
        yield f"  {labels.get(run_id, run_id)} attempt {attempt}: {line}"


def _line(row: JobStatus, command: str) -> str:
    """Return one line on a run. command: the command that continues interrupted runs."""
    step = f" step {row.step}/{row.total}" if row.step is not None and row.total else ""
    if row.state is State.INTERRUPTED:
        return f"{row.state.value} {label(row)}{step}: {ENDED}; continue with `{command}`"
    if row.state is not State.RUNNING:
        return f"{row.state.value:<9} {label(row)}{step}"
    since = f" for {duration(max(0.0, time.time() - row.started))} on {row.slot}" if row.started else ""
    left = f", about {duration(row.left_s)} of training left" if row.left_s is not None else ""
    return f"{row.state.value:<9} {label(row)}{step} {row.doing}{since}{left}"


def _reasons(store: Store, queue: Queue, command: str) -> Callable[[JobStatus, int | None], str]:
    """Return a function that gives the reason why a run waits. command: the command that trains the waiting runs.

    The function takes a run and the number of waiting runs before it. If the number is None, the reason does not
    contain it.
    """
    holder, draining = store.coordinator(), "drain" in queue.notes()

    def why(row: JobStatus, before: int | None) -> str:
        if row.held:
            return row.held
        if not holder:
            ended = f" ({row.doing})" if row.doing else ""
            return f"{NOT_TRAINING}; continue with `{command}`{ended}"
        if draining:
            return "`ablations work --drain` stopped new runs"
        if row.doing or before is None:
            return row.doing or "waits for a free slot"
        return f"waits for a free slot, after {number(before, 'run')}" if before else "next; waits for a free slot"

    return why


def _as_json(store: Store, command: str, only: set[str] | None) -> list[dict[str, Any]]:
    with Queue(store.queue_db, create=False) as queue:
        before, plain, why = 0, [], _reasons(store, queue, command)
        damaged: dict[str, list[str]] = {}
        for run_id, _, line in damaged_events(store, queue.damaged_lines()):
            damaged.setdefault(run_id, []).append(line)
        for row in observed(store, queue, queue.status()):
            value: dict[str, Any] = {**asdict(row), "members": [member._asdict() for member in row.members]}
            # The path of the last attempt's log, relative to the store.
            value["log"] = f"runs/{row.run_id}/attempts/{row.attempt:04d}/log.txt" if row.attempt else None
            value["damaged"] = damaged.get(row.run_id, [])
            value["why"] = ""
            if row.state is State.WAITING:
                value["why"] = why(row, before)
                before += 1
            if row.state is State.INTERRUPTED:
                value["why"] = f"{ENDED}; continue with `{command}`"
            if only is None or row.run_id in only:
                plain.append(value)
        return plain


FOLLOW_S = 0.5  # seconds between two reads of the log with --follow
RECENT = 10  # number of earlier points of the training curve that --follow prints first
SPOKEN = {  # kind of event → the text printed below its attempt
    "resumed": "resumed at step {step}, from {path}",
    "branched": "begins with the state of run {run} after step {step}",
    "restarted": "restarted from step 0: {why}",
    "checkpoint_skipped": "skipped the checkpoint {path}: {reason}",
    "failed": "failed ({cls}): {message}",
    "preempted": "stopped at step {step}, after a checkpoint",
}


def log(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[STUDY] RUN",
            help="A row (A-h16, A-h16:2) or the beginning of a run_id; with STUDY, one of its runs.",
        ),
    ],
    store_options: StoreOptions,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Number of the attempt; the last if unset.")
    ] = None,
    follow: Annotated[
        bool,
        typer.Option(
            "--follow",
            "-f",
            help="Print new log lines and metrics until the run ends; of several runs, follow the running one.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Show a run's attempts with their outcomes, and the log of the last attempt."""
    opened = store_options.open()
    rows, run = of_study(opened, words), " ".join(words)
    if len(rows) > 1 and follow:
        running = [row for row in rows if row.state is State.RUNNING]
        selected, rows = rows, [max(running or rows, key=lambda row: row.started or row.queued)]
        if len(running) != 1:
            say(f"{run} selects {len(selected)} runs, {len(running) or 'none'} of them running; following the newest")
    if len(rows) > 1:
        raise UserError(f"{run} selects {len(rows)} runs. Name one by its run_id or seed:\n{labels(rows)}")
    row, numbers = rows[0], opened.attempts(rows[0].run_id)
    with Queue(opened.queue_db, create=False) as queue:
        history = queue.history(row.run_id)
    if as_json:
        print_json(_record(opened, row, numbers, history))
        return
    typer.echo(f"{label(row)}: {row.state.value}")
    _print_attempts(opened, row, history)
    if row.state is State.INTERRUPTED:
        typer.echo(f"  {ENDED}; it continues with the next `ablations run` or `ablations work`")
    if not numbers:
        typer.echo("no attempt has started")
        return
    number = attempt or numbers[-1]
    if number not in numbers:
        raise UserError(f"{run} has no attempt {number}. Its attempts are: {', '.join(map(str, numbers))}.")
    folder = opened.attempt_folder(row.run_id, number)
    typer.echo(f"--- {folder / LOG}")
    _print(opened, row.run_id, folder, follow)


def _record(store: Store, row: JobStatus, numbers: Iterable[int], history: Sequence[Any]) -> dict[str, Any]:
    folders = [store.attempt_folder(row.run_id, number) for number in numbers]
    return {
        "run_id": row.run_id, "row": label(row), "state": row.state.value, "attempts": history,
        "logs": [str(folder / LOG) for folder in folders],
        "tail": log_tail(store, folders[-1]) if folders else "",
        "points": [
            {"attempt": number, "step": event["step"], **event["metrics"]}
            for number, folder in zip(numbers, folders, strict=True)
            for event in Tail(folder).read()
            if event["kind"] == "metrics"
        ],
    }  # fmt: skip


def _print_attempts(store: Store, row: JobStatus, history: Iterable[Mapping[str, Any]]) -> None:
    for made in history:
        steps = f" steps {made['first_step'] or 0}–{made['last_step']}" if made["last_step"] is not None else ""
        seconds = f" {max(0.0, made['ended'] - made['started']):.0f} s" if made["ended"] else ""
        outcome = made["outcome"] or (row.state.value if row.state is State.INTERRUPTED else State.RUNNING.value)
        typer.echo(f"  attempt {made['number']} on {made['slot']}:{seconds}{steps} {outcome} {made['detail']}".rstrip())
        tail = Tail(store.attempt_folder(row.run_id, made["number"]))
        for event in tail.read():
            if event["kind"] in SPOKEN:
                stopped = event["kind"] == "preempted" and event.get("step") is None
                words = "stopped" if stopped else SPOKEN[event["kind"]]
                typer.echo(f"    {words.format_map(defaultdict(lambda: '?', event))}")
        if tail.damaged:
            typer.echo(f"    {tail.damage(store.root)}")


def _print(store: Store, run_id: str, folder: Path, follow: bool) -> None:
    tail = Tail(folder)
    points = list(_points(tail))[-RECENT:] if follow else []
    try:
        with open_regular(folder / LOG) as file:
            _echo(file)
            while follow:
                # The state is read before the log, so that the last lines of a run that ends now are printed too.
                running = any(row.state is State.RUNNING for row in chosen(store, [run_id]) if row.run_id == run_id)
                for line in [*points, *_points(tail)]:
                    typer.echo(line)
                points = []
                if file.tell() > os.fstat(file.fileno()).st_size:  # the middle of the log was removed
                    typer.echo("… lines in the middle of the log were removed …")
                    file.seek(0, os.SEEK_END)
                _echo(file)
                if not running or reader_has_left():
                    return
                time.sleep(FOLLOW_S)
    except FileNotFoundError:
        typer.echo("the log is empty")
    except OSError as error:
        typer.echo(f"the log cannot be read: {error.strerror}")


def _echo(file: IO[bytes]) -> None:
    """Print the rest of a file in blocks, because a single line may have gigabytes."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while not reader_has_left() and (data := file.read(1 << 16)):
        typer.echo(decoder.decode(data), nl=False)
    typer.echo(decoder.decode(b"", final=True), nl=False)


def _points(tail: Tail) -> Iterator[str]:
    """Yield a line for each new point of the training curve."""
    for event in tail.read():
        if event["kind"] == "metrics":
            numbers = (
                f"{name} {value:.5g}" for name, value in event["metrics"].items() if isinstance(value, int | float)
            )
            yield f"step {event['step']:,}  {'  '.join(numbers)}"


Names = Annotated[
    list[str], typer.Argument(metavar="RUN…", help="Rows, studies or run_ids, the beginning of one, or all.")
]
MaybeNames = Annotated[list[str] | None, typer.Argument(metavar="RUN…", help="Rows, studies or run_ids; all if unset.")]
OfRows = Annotated[str | None, typer.Option("--rows", metavar="KEY,KEY", help="Rows, like RUN.")]


def cancel(runs: Names, store_options: StoreOptions, as_json: options.Json = False) -> None:
    """Remove runs from the queue; running ones save a checkpoint and end. `retry` queues them again."""
    opened = store_options.open()
    rows = chosen(opened, runs, (State.WAITING, State.RUNNING, State.INTERRUPTED))
    _ask(opened, rows, Queue.cancel, "cancel")
    running = "; running ones end after a checkpoint" if any(row.state is State.RUNNING for row in rows) else ""
    done = f"cancelled{running}:\n{labels(rows)}".rstrip()
    answer(as_json, _records(rows), [done if rows else "nothing to cancel: none of these runs is waiting or running"])


def retry(
    runs: MaybeNames = None, *, rows_: OfRows = None, store_options: StoreOptions, as_json: options.Json = False
) -> None:
    """Queue failed and cancelled runs again; they resume from their checkpoints.

    Without names, queue all of them, also those whose rows or seeds are no longer in their study.
    """
    opened = store_options.open()
    named = [*(runs or ()), *filter(None, (rows_ or "").split(","))]
    rows = chosen(opened, named or ["all"], (State.FAILED, State.CANCELLED))
    _ask(opened, rows, Queue.retry, "retry")
    lines = [f"queued again: {label(row)}" for row in rows]
    if not rows:
        lines = ["nothing to retry: none of these runs failed or was cancelled"]
    elif not opened.coordinator():
        lines.append(f"train with `ablations work {store_options.where}`")
    if rows and not named:
        one = next((f"{row.members[0].row}:{row.seed}" for row in rows if row.members), rows[0].run_id)
        lines.append(f"these are all failed and cancelled runs of the store; remove one with `ablations cancel {one}`")
    answer(as_json, _records(rows), lines)


def _records(rows: Iterable[JobStatus]) -> list[dict[str, str]]:
    """Return the runs of a request as JSON, with their states before the request."""
    return [{"run_id": row.run_id, "row": label(row), "state": row.state.value} for row in rows]


def _ask(store: Store, rows: Iterable[JobStatus], request: Callable[[Queue, list[str]], object], what: str) -> None:
    run_ids = [row.run_id for row in rows]
    ledger.append(store, what, run_ids=run_ids)
    with Queue(store.queue_db) as queue:
        request(queue, run_ids)
