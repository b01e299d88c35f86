"""The coordinator: the only process that works on a store.

It takes jobs from the queue, starts a child for each on a free slot, reads the children's events, moves completed
parts into place, and decides about the rest. It may die at any moment: the next coordinator continues from there
(`Coordinator._recover`).
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

from experiments.errors import explain_os_errors
from experiments.jobs.coordinator.attempt_watch import HANG_S
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.interrupts import Interrupts
from experiments.jobs.coordinator.loop import Coordinator, Until
from experiments.jobs.coordinator.placement import Placement, TaskOf
from experiments.jobs.coordinator.reporter import Reporter, Summary, View
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.engine import CHILD, Engine
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue.job import State
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store import locks
from experiments.store.budget import BUDGET
from experiments.store.durable import remove_folder
from experiments.store.layout import Store

SINKS_S = 60.0
INTERRUPTED_S = 10.0  # for MLflow after a signal; the next coordinator writes the rest


def work(
    store: Store,
    slots: Sequence[Slot],
    task_of: TaskOf | None = None,
    tracker: Background | None = None,
    on_progress: Callable[[View], None] | None = None,
    *,
    until: Until = "empty",
    engine: Engine | None = None,
    child: Sequence[str] = CHILD,
    refill: Callable[[], None] | None = None,
    hang_s: float = HANG_S,
    sinks: Sequence[Background] = (),
    only: Collection[str] | None = None,
) -> Summary:
    """Work on a store's queue until it is empty, or as `until` says (loop.Until), or until SIGINT or SIGTERM.

    The first signal asks the children to save a checkpoint and waits for them; the second kills them. Without
    `task_of` nothing is prepared and code is not compared. A child without an event for `hang_s` is stopped. `refill`
    is called at the beginning and after each ended job, in this process under its lock, to queue more (a tuner's next
    trial). `only`: run_ids; other runs that wait now stay queued. `sinks` are told of runs as the tracker is, and are
    waited for SINKS_S at the end; after a signal the tracker is waited for INTERRUPTED_S. Raises UserError if another
    coordinator holds the store, DiskFull if the disk is full; then the work stays queued.
    """
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(contextlib.closing(engine or LocalEngine()))
        stack.enter_context(store.coordinator_lock())
        queue = stack.enter_context(WorkQueue(store.queue_db))
        queue.check()
        sweep(store, running=queue.in_state(State.RUNNING))
        interrupts = stack.enter_context(Interrupts())
        reporter = Reporter(queue, tracker, on_progress, sinks)
        placement = Placement(store, queue, slots, engine, child, task_of, reporter)
        try:
            with explain_os_errors(f"work on the store {store.root}"):
                Coordinator(placement, interrupts, hang_s, refill).run(until, only)
        finally:
            if tracker is not None:
                with contextlib.suppress(KeyboardInterrupt):  # second signal: the next coordinator writes the rest
                    tracker.close(INTERRUPTED_S, hurry=lambda: bool(interrupts.number))
            for sink in sinks:
                with contextlib.suppress(KeyboardInterrupt):
                    sink.close(SINKS_S)
        reporter.note_tracked()
        reporter.summary.interrupted = interrupts.number
        held = sum(row.held.startswith(BUDGET) for row in queue.rows(State.WAITING, -1))
        reporter.summary.left = len(queue.waiting(-1)) + held if until == "empty" else 0
        return reporter.summary


# --- Temporary files and folders that killed processes left behind; the next coordinator removes them
# A process that creates one holds a lock on it (experiments/store/durable.py). Those created after the coordinator's
# start are left alone: their process may not have locked them yet.


_RANDOM = "[0-9a-f]{16}"
_NAME = re.compile(
    rf"\.?(?:mlflow|taking|probe|smoke)-{_RANDOM}|\..+\.{_RANDOM}\.partial|\.step-[0-9]+\.partial"
    rf"|\..+\.(?:json|jsonl|toml|db|npy|txt|diff)\.{_RANDOM}"
)
_INSIDE = (
    *("", "evaluations", "evaluations/*", "attempts", "attempts/*", "attempts/*/evaluations/*"),
    *("attempts/*/checkpoints", "attempts/*/final"),  # of trainers; the names are not ones that they choose
)


def sweep(store: Store, running: Collection[str]) -> int:
    """Remove leftovers and return their number; skips `running` runs, whose children may be on another machine.

    The caller holds the coordinator's lock.
    """
    count = 0
    for folder in _places(store, running):
        home = store.root if folder.is_relative_to(store.root) else store.state_dir
        began = (home / locks.FILE).stat().st_mtime  # this coordinator, by the clock of the folder's disk
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            for entry in entries:
                if _NAME.fullmatch(entry.name) and not entry.is_symlink():
                    count += _remove(Path(entry.path), began)
    return count


def _places(store: Store, running: Collection[str]) -> Iterator[Path]:
    yield from dict.fromkeys((store.root, store.state_dir, store.runs, store.corpora, store.root / "tuning"))
    for run in store.runs.glob("[0-9a-f]*"):
        if run.name not in running:
            for inside in _INSIDE:
                yield from run.glob(inside) if inside else (run,)


def _remove(path: Path, before: float) -> bool:
    """Remove a leftover; False if it is new, or locked by a living process."""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            if os.fstat(handle).st_mtime >= before:
                return False
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                remove_folder(path)
            else:
                path.unlink()
            return True
        finally:
            os.close(handle)
    return False
