"""The coordinator: the only process that works on a store.

The coordinator takes jobs from the queue and starts a child process for each job on a free slot. It reads the events of
the children, moves completed trainings and evaluations to their final folders, and decides the next state of each job.
If the coordinator is killed, the next coordinator continues its work (`Coordinator._recover`).
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
from experiments.jobs.coordinator.placement import Placement
from experiments.jobs.coordinator.preparation import TaskOf
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

SINKS_S = 60.0  # longest wait in seconds for each sink at the end
INTERRUPTED_S = 10.0  # longest wait in seconds for MLflow after a signal; the next coordinator writes the rest


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
    """Work on a store's queue until the condition `until` (loop.Until) is met, or until SIGINT or SIGTERM.

    After the first signal, `work` asks the children to save a checkpoint and waits for their end. After the second
    signal, `work` kills them. Raises UserError if another coordinator works on the store. Raises DiskFull if the disk
    is full; the remaining jobs then stay queued.

    task_of: returns the task of a run. Without it, no data is prepared, and the code of earlier attempts is not
        compared with the present code.
    tracker: writes runs to MLflow; after a signal, `work` waits at most INTERRUPTED_S for it.
    sinks: receive the same runs as the tracker; `work` waits at most SINKS_S for each at the end.
    hang_s: seconds; a child that writes no event for this time is stopped.
    refill: queues more jobs, for example a tuner's next trial. The coordinator calls it in this process, while it holds
        the store's lock, at the beginning and after each ended job.
    only: run_ids to work on. Other runs that wait when `work` starts stay queued. Runs queued later are trained.
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
                with contextlib.suppress(
                    KeyboardInterrupt
                ):  # after a second signal, the next coordinator writes the rest
                    tracker.close(INTERRUPTED_S, hurry=lambda: bool(interrupts.number))
            for sink in sinks:
                with contextlib.suppress(KeyboardInterrupt):
                    sink.close(SINKS_S)
        reporter.note_tracked()
        reporter.summary.interrupted = interrupts.number
        held = sum(row.held.startswith(BUDGET) for row in queue.rows(State.WAITING, -1))
        reporter.summary.left = len(queue.waiting(-1)) + held if until == "empty" else 0
        return reporter.summary


# A process that creates a temporary file or folder holds a lock on it (experiments/store/durable.py). `sweep` skips
# files and folders that changed after the start of this coordinator, because a process may not have locked them yet.


_RANDOM = "[0-9a-f]{16}"
_NAME = re.compile(
    rf"\.?(?:mlflow|taking|probe|smoke)-{_RANDOM}|\..+\.{_RANDOM}\.partial|\.step-[0-9]+\.partial"
    rf"|\..+\.(?:json|jsonl|toml|db|npy|txt|diff)\.{_RANDOM}"
)
_INSIDE = (
    *("", "evaluations", "evaluations/*", "attempts", "attempts/*", "attempts/*/evaluations/*"),
    # Trainers also write to these two folders, but never use a name that matches _NAME.
    *("attempts/*/checkpoints", "attempts/*/final"),
)


def sweep(store: Store, running: Collection[str]) -> int:
    """Remove the temporary files of killed processes, and return the number of removed files and folders.

    The caller must hold the coordinator's lock.

    running: run_ids that are skipped, because their children may be on another machine.
    """
    count = 0
    for folder in _places(store, running):
        home = store.root if folder.is_relative_to(store.root) else store.state_dir
        began = (home / locks.FILE).stat().st_mtime  # start time of this coordinator, by the clock of the disk
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
    """Remove a temporary file or folder. Return False if it is new, or locked by a living process."""
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
