"""One attempt: what it may start from, what its child is told, and what is kept of it while it runs."""

import os
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.events.event_log import EventWriter, Tail
from experiments.jobs.attempts.progress import AttemptProgress
from experiments.jobs.attempts.promote import TRAINING
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.base import Engine, Handle, Launch, child_environment
from experiments.jobs.queue.job import Claimed, Job
from experiments.processes.identity import identify
from experiments.store.layout import Store
from experiments.store.spec import FILE, AttemptSpec, EvaluationRequest

LOG = "log.txt"
TAIL_LINES = 15


@dataclass
class RunningAttempt:
    """An attempt that the coordinator watches."""

    claimed: Claimed
    number: int
    folder: Path
    slot: Slot
    expected: tuple[str, ...]  # the parts it is to make
    handle: Handle | None
    tail: Tail
    progress: AttemptProgress = field(default_factory=AttemptProgress)
    asked: str = ""  # "stop", "cancel" or "hung" once it was asked to end
    asked_at: float = 0.0
    heard_at: float = field(default_factory=time.monotonic)  # its last event

    def listen(self) -> None:
        """Take in what its events have said since the last time."""
        for event in self.tail.read():
            self.heard_at = time.monotonic()
            self.progress.take(event)

    @property
    def run_id(self) -> str:
        return self.claimed.job.run_id


@dataclass
class PreparedAttempt:
    """An attempt whose folder is made and whose child is to be started."""

    live: RunningAttempt
    launch: Launch


def prepare_attempt(
    store: Store,
    engine: Engine,
    child: Sequence[str],
    claimed: Claimed,
    attempt: tuple[int, Path],
    slot: Slot,
    parts: Sequence[str],
    code_digest: str,
) -> PreparedAttempt:
    """Write the child's spec. `parts` are what it is to make."""
    number, folder = attempt
    job = claimed.job
    stands = _standing(store, job) if TRAINING in parts else {}
    earlier = list(_earlier(store, job, number, code_digest, stands)) if TRAINING in parts else []
    if TRAINING in parts and not earlier:  # what former attempts pinned or reached does not bind
        _say_restart(store, job, number, folder, "it kept too little for an evaluation" if stands else "")
        alike = stands.get("pinned", {})  # as it was trained before, for the same weights
        claimed = replace(claimed, pinned=alike if alike.get("kind") == slot.kind else {}, best=0)
    pinned = {"kind": slot.kind, "threads": slot.threads, "devices": slot.count, **claimed.pinned}
    threads = pinned["threads"] if pinned["kind"] == slot.kind else slot.threads
    spec = AttemptSpec(
        store=str(store.root),
        run_id=job.run_id,
        attempt=number,
        task=job.task,
        folder=job.folder,
        members=job.members,
        config=dict(job.config),
        inputs=dict(job.inputs),
        train=TRAINING in parts,
        evaluations=tuple(EvaluationRequest(**item) for item in job.evaluations if item["eval_id"] in parts),
        device=slot.device_spec(threads),
        keeps=tuple(tuple(keep) for keep in job.keeps),
        earlier=tuple(os.path.relpath(path, store.root) for path in earlier),
        pinned=pinned,
        # children that outlive the coordinator do not watch it
        coordinator=None if engine.outlives else identify(os.getpid()),
    )
    command = Launch([*child, str(spec.write(folder))], child_environment(slot, threads), folder / LOG, slot)
    claimed = replace(claimed, pinned=pinned)
    return PreparedAttempt(RunningAttempt(claimed, number, folder, slot, tuple(parts), None, Tail(folder)), command)


def start(engine: Engine, plans: Sequence[PreparedAttempt]) -> list[RunningAttempt]:
    """Start the children. One that cannot be started counts as an attempt that was killed."""
    for planned, handle in zip(plans, engine.start_all([planned.launch for planned in plans]), strict=True):
        if isinstance(handle, OSError):
            planned.launch.log.write_text(f"could not start a process: {handle}\n", encoding="utf-8")
        else:
            planned.live.handle = handle
    return [planned.live for planned in plans]


def adopt(store: Store, engine: Engine, claimed: Claimed, slots: Sequence[Slot]) -> RunningAttempt:
    """An attempt that another coordinator has left; its handle is None if the child is gone too.

    Raises UserError if it was given to another engine: whether it still runs there is not for this one to know.
    """
    theirs = str((claimed.ref or {}).get("engine", engine.name))
    if theirs not in (engine.name, "local"):
        raise UserError(
            f"Runs of this store were given to {theirs} and are not back yet. Work on it with --engine {theirs}; "
            "`ablations cancel all` and that command end them."
        )
    folder = store.attempt_folder(claimed.job.run_id, claimed.attempt)
    slot = next((s for s in slots if s.name == claimed.slot), Slot(claimed.slot, ""))
    handle = engine.adopt(claimed.ref) if claimed.ref else None
    return RunningAttempt(claimed, claimed.attempt, folder, slot, tuple(_expected(folder)), handle, Tail(folder))


def _expected(folder: Path) -> list[str]:
    """The parts that an attempt was to make; none if its spec cannot be read."""
    try:
        spec = AttemptSpec.read(folder / FILE)
        return [TRAINING] * spec.train + [item.eval_id for item in spec.evaluations]
    except (UserError, OSError):
        return []  # a coordinator that was killed while it wrote this had started nothing yet


def _standing(store: Store, job: Job) -> dict[str, Any]:
    """The result that is to be trained again because it kept too little for an evaluation; empty if there is none."""
    result = store.result(job.run_id)
    return result if result is not None and int(result["attempt"]) > job.rerun_after else {}


def _earlier(store: Store, job: Job, number: int, code_digest: str, stands: Mapping[str, Any]) -> Iterator[Path]:
    """Folders with checkpoints that this attempt may go on from, newest first; then those of shorter runs.

    Attempts of other code are left out, and what lies before them: a run never goes on half old, half new.
    """
    for run_id in (job.run_id, *job.continues):
        done = max(job.rerun_after, int(stands.get("attempt", 0)))
        stale, before = (done, number) if run_id == job.run_id else (0, None)
        for earlier in reversed(store.attempts(run_id)):
            if before is not None and earlier >= before:
                continue
            if earlier <= stale:
                break
            folder = store.attempt_folder(run_id, earlier)
            started = _first_event(folder)
            if started is None:
                continue
            if started.get("code_digest", "") != code_digest:
                break
            yield folder


def _say_restart(store: Store, job: Job, number: int, folder: Path, why: str) -> None:
    """Leave word in the events when work that was begun is not gone on with."""
    begun = [n for n in store.attempts(job.run_id) if n < number and _first_event(store.attempt_folder(job.run_id, n))]
    if begun:
        events = EventWriter(folder)
        events.emit("restarted", why=why or "the code has changed since the earlier attempts", earlier=begun)
        events.close()


def _first_event(folder: Path) -> Mapping[str, Any] | None:
    """The "started" event of an attempt, without reading its curve."""
    return next((event for event in Tail(folder).read() if event["kind"] == "started"), None)


def log_tail(store: Store, folder: Path) -> str:
    """The last lines of an attempt's log and where the rest is."""
    try:
        with (folder / LOG).open(encoding="utf-8", errors="replace") as file:
            lines = deque(file, TAIL_LINES)
    except FileNotFoundError:
        return ""
    text = "".join(lines)[-3000:].strip()
    return f"The end of {os.path.relpath(folder / LOG, store.root)} in the store:\n{text}" if text else ""
