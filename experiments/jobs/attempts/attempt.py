"""One attempt: its starting point, the spec for its child process, and its state and progress while it runs."""

import contextlib
import math
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.events.event_log import EventWriter, Tail, last_event
from experiments.events.heartbeat import last_heartbeat
from experiments.jobs.attempts.attempt_progress import AttemptProgress
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.engine import Engine, Handle, Launch, child_environment
from experiments.jobs.queue.job import Claimed, Job
from experiments.processes.marked import MARK
from experiments.processes.process_identity import identify
from experiments.records import TRAINING, FailureClass
from experiments.run_spec import TrainerSpec
from experiments.store.durable import open_regular
from experiments.store.layout import LOG, Store
from experiments.store.results import TrainingResult
from experiments.store.spec import FILE, AttemptSpec
from experiments.store.trees import is_kept

TAIL_LINES, TAIL_BYTES = 15, 1 << 16


@dataclass
class RunningAttempt:
    """A running attempt that the coordinator watches."""

    claimed: Claimed
    number: int
    folder: Path
    slot: Slot
    expected: tuple[str, ...]  # parts (the training and evaluations) that the attempt must make: TRAINING, eval_ids
    handle: Handle | None
    tail: Tail
    progress: AttemptProgress = field(default_factory=AttemptProgress)
    # The times `asked_at`, `heard_at` and `began` are values of `time.monotonic`.
    asked: str = ""  # reason ("stop", "cancel" or "hung") for which the child was asked to end; "" if it was not asked
    asked_at: float = 0.0
    heard_at: float = field(default_factory=time.monotonic)  # time when the last event was read
    began: float = math.inf  # start time; inf if a cluster or another coordinator started the attempt

    @property
    def leased(self) -> list[str]:
        """Names of the slots that the attempt holds.

        Evaluations use one GPU. So an attempt on several GPUs of this machine holds only the first GPU once its
        training is complete, or if it has no training.
        """
        parts = self.slot.parts
        if self.slot.count == 1 or not self.slot.device or (TRAINING in self.expected and not self.progress.parts):
            return parts
        return [part for part in parts if part.partition("/")[0] == parts[0].partition("/")[0]]

    @property
    def lasted_s(self) -> float:
        """Seconds since the start of the attempt.

        If the time of the start is unknown, return the seconds from the first event to the last event or heartbeat.
        """
        if self.began < math.inf:
            return max(time.monotonic() - self.began, self.progress.lasted_s)
        first, heard = self.progress.first_t, last_heartbeat(self.folder)
        return max(self.progress.lasted_s, heard - first if first is not None else 0.0)

    def listen(self) -> None:
        """Read the new events."""
        for event in self.tail.read():
            self.heard_at = time.monotonic()
            self.progress.take(event)

    @property
    def run_id(self) -> str:
        """The run_id of the job."""
        return self.claimed.job.run_id


@dataclass
class PreparedAttempt:
    """An attempt with its folder and spec, ready to start."""

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
    """Write the spec for the child process, and return the attempt ready to start.

    attempt: number and folder of the attempt.
    parts: TRAINING and eval_ids that the attempt must make.
    """
    number, folder = attempt
    job = claimed.job
    # `stands` is a valid result whose training is repeated, because its checkpoints are not enough for an evaluation or
    # a branch.
    stands = store.result(job.run_id) if TRAINING in parts else None
    stands = stands if stands and stands.attempt > job.rerun_after else None
    earlier = list(_earlier(store, job, number, code_digest, stands)) if TRAINING in parts else []
    if TRAINING in parts and not earlier:  # settings and progress of earlier attempts do not apply
        _say_restart(store, job, number, folder, "it kept too few checkpoints for an evaluation" if stands else "")
        alike = stands.pinned if stands else {}  # the settings of the earlier training give the same weights
        alike = alike if alike.get("kind") == slot.kind else {}
        tokens = claimed.pinned.get("micro_batch_tokens")
        if tokens and _too_large_to_announce(store, job, number):
            alike = {name: value for name, value in alike.items() if name != "shapes"} | {"micro_batch_tokens": tokens}
        claimed = replace(claimed, pinned=alike, best=0)
    pinned = {"kind": slot.kind, "threads": slot.threads, "devices": slot.count, **claimed.pinned}
    threads = pinned["threads"] if pinned["kind"] == slot.kind else slot.threads
    spec = AttemptSpec(
        spec=job.spec,
        store=str(store.root),
        attempt=number,
        device=slot.device_spec(threads),
        train=TRAINING in parts,
        evaluations=tuple(item for item in job.evaluations if item.eval_id in parts),
        renew=job.renew,
        limit=job.limit,
        members=job.members,
        keeps=tuple(tuple(keep) for keep in job.keeps),
        earlier=tuple(os.path.relpath(path, store.root) for path in earlier),
        pinned=pinned,
        # A child that may outlive the coordinator does not check whether the coordinator is alive.
        coordinator=None if engine.outlives else identify(os.getpid()),
    )
    environment = {**child_environment(slot, threads), MARK: str(folder)}
    command = Launch([*child, str(spec.write(folder))], environment, folder / LOG, slot)
    claimed = replace(claimed, pinned=pinned)
    return PreparedAttempt(RunningAttempt(claimed, number, folder, slot, tuple(parts), None, Tail(folder)), command)


def start(engine: Engine, plans: Sequence[PreparedAttempt]) -> list[RunningAttempt]:
    """Start the children and return their attempts. A child that cannot be started counts as a killed attempt."""
    for planned, handle in zip(plans, engine.start_all([planned.launch for planned in plans]), strict=True):
        if isinstance(handle, OSError):
            planned.launch.log.write_text(f"could not start a process: {handle}\n", encoding="utf-8")
        else:
            planned.live.handle = handle
            planned.live.began = math.inf if engine.outlives else time.monotonic()
    return [planned.live for planned in plans]


def adopt(store: Store, engine: Engine, claimed: Claimed, slots: Sequence[Slot]) -> RunningAttempt:
    """Return an attempt that another coordinator started. The attempt's handle is None if its child has ended.

    Raises UserError for an attempt of another engine, because this engine cannot know whether the attempt still runs
    there.
    """
    theirs = str((claimed.ref or {}).get("engine", engine.name))
    if theirs not in (engine.name, "local"):
        raise UserError(
            f"Runs of this store were started on {theirs} and have not ended yet. Work on it with --engine {theirs}; "
            "`ablations cancel all` and that command end them."
        )
    folder = store.attempt_folder(claimed.job.run_id, claimed.attempt)
    slot = next((s for s in slots if s.name == claimed.slot), Slot(claimed.slot, ""))
    handle = engine.adopt(claimed.ref) if claimed.ref else None
    return RunningAttempt(claimed, claimed.attempt, folder, slot, tuple(_expected(folder)), handle, Tail(folder))


def _expected(folder: Path) -> list[str]:
    """Return the parts that an attempt had to make; [] if its spec cannot be read."""
    try:
        spec = AttemptSpec.read(folder / FILE)
        return [TRAINING] * spec.train + [item.eval_id for item in spec.evaluations]
    except (UserError, OSError):
        return []  # a coordinator that was killed while it wrote the spec had not started the child


def _earlier(store: Store, job: Job, number: int, code_digest: str, stands: TrainingResult | None) -> Iterator[Path]:
    """Yield the folders with checkpoints from which this attempt may resume.

    The earlier attempts of this run come first. The attempts of shorter runs that this run may continue come after
    them. For each run, the newest attempt comes first. A run never mixes old and new code. Therefore,
    an attempt that used other code is left out, and so are all attempts before it. Attempts that only evaluated are
    left out, because they have no checkpoints.
    """
    for run_id in (job.run_id, *job.continues):
        done = max(job.rerun_after, stands.attempt if stands else 0)
        stale, before = (done, number) if run_id == job.run_id else (0, None)
        for earlier in reversed(store.attempts(run_id)):
            if before is not None and earlier >= before:
                continue
            if earlier <= stale:
                break
            folder = store.attempt_folder(run_id, earlier)
            started = _first_event(folder)
            parts = _expected(folder)  # [] if the spec cannot be read
            if started is None or (parts and TRAINING not in parts):
                continue
            if started.get("code_digest", "") != code_digest:
                break
            yield folder


def with_first_code(store: Store, job: Job) -> Job:
    """Return the job with the code tree of its first attempt. Return it unchanged if its code is not a stored tree.

    A resumed run uses the tree of the first attempt even if the user has committed or edited the code since then. The
    archive of this tree is in the store. Attempts up to `job.rerun_after` do not count. If the code of an attempt may
    have made it fail, this attempt and all attempts before it do not count either. If no attempt counts, the next
    attempt uses the present tree.
    """
    if not job.spec.trainer.tree:
        return job
    first: TrainerSpec | None = None
    for number in store.attempts(job.run_id):
        folder = store.attempt_folder(job.run_id, number)
        if number <= job.rerun_after or (last_event(folder) or {}).get("cls") in _OF_THE_CODE:
            first = None
            continue
        if first is None:
            with contextlib.suppress(UserError, OSError):  # without a spec, no child was started
                trainer = AttemptSpec.read(folder / FILE).spec.trainer
                first = trainer if trainer.tree and is_kept(store.root, trainer.tree) else None
    if first is None:
        return job
    trainer = replace(job.spec.trainer, tree=first.tree, base=first.base, lines=first.lines)
    return replace(job, spec=replace(job.spec, trainer=trainer))


# Failures that the code of an attempt may have caused.
_OF_THE_CODE = (FailureClass.BUG, FailureClass.USER_ERROR, FailureClass.DIVERGED)


def _too_large_to_announce(store: Store, job: Job, number: int) -> bool:
    """Return whether an attempt after the last one with a "started" event ran out of memory.

    The code of such an attempt is unknown, so its checkpoints are not used. But the next attempt uses its smaller
    micro-batch. With the whole batch, each attempt would run out of memory in the same way, and the run would never
    fail.
    """
    for earlier in reversed([n for n in store.attempts(job.run_id) if job.rerun_after < n < number]):
        folder = store.attempt_folder(job.run_id, earlier)
        if _first_event(folder) is not None:
            return False
        if (last_event(folder) or {}).get("cls") == FailureClass.OUT_OF_MEMORY:
            return True
    return False


def _say_restart(store: Store, job: Job, number: int, folder: Path, why: str) -> None:
    """Record in the events of this attempt that it does not continue earlier attempts, if there are any."""
    begun = [n for n in store.attempts(job.run_id) if n < number and _first_event(store.attempt_folder(job.run_id, n))]
    if begun:
        events = EventWriter(folder)
        events.emit("restarted", why=why or "the code has changed since the earlier attempts", earlier=begun)
        events.close()


def _first_event(folder: Path) -> Mapping[str, Any] | None:
    """Return the "started" event of an attempt; None if there is none."""
    return next((event for event in Tail(folder).read() if event["kind"] == "started"), None)


def say_ended(live: RunningAttempt) -> None:
    """Write the "ended" event of a child that did not record its end, so that its costs are counted until now."""
    live.listen()
    if live.progress.started and not live.progress.said_end:
        with contextlib.suppress(OSError):  # on a full disk, the costs of the child are counted until its last event
            events = EventWriter(live.folder)
            events.emit("ended")
            events.close()


def log_tail(store: Store, folder: Path) -> str:
    """Return the path and the last lines of an attempt's log; "" if the log is empty or cannot be read."""
    try:
        with open_regular(folder / LOG) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))  # a line may be gigabytes long
            lines = file.read().decode(errors="replace").splitlines(keepends=True)[-TAIL_LINES:]
    except OSError:  # the log is missing or is not a regular file
        return ""
    text = "".join(lines)[-3000:].strip()
    return f"The end of {os.path.relpath(folder / LOG, store.root)} in the store:\n{text}" if text else ""
