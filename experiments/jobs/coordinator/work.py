"""The coordinator: the only process that works on a store.

It takes jobs from the queue, starts a child for each on a free slot, reads the children's events, moves completed
parts into place, and decides about the rest. It may die at any moment: the next coordinator continues from there
(`Coordinator._recover`).
"""

import contextlib
from collections.abc import Callable, Sequence

from experiments.errors import explain_os_errors
from experiments.jobs.coordinator import leftovers
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.interrupts import Interrupts
from experiments.jobs.coordinator.loop import Coordinator, Until
from experiments.jobs.coordinator.notify import Notifier
from experiments.jobs.coordinator.placement import Placement
from experiments.jobs.coordinator.preparation import LoadTask
from experiments.jobs.coordinator.reporter import Reporter, Summary, View
from experiments.jobs.coordinator.watch import HANG_S
from experiments.jobs.devices.slots import Slot
from experiments.jobs.engines.base import CHILD, Engine
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.queue.ledger import Ledger
from experiments.jobs.queue.shares import load_shares
from experiments.jobs.queue.states import State
from experiments.store.layout import Store

SINKS_S = 60.0


def work(
    store: Store,
    slots: Sequence[Slot],
    load_task: LoadTask | None = None,
    tracker: Background | None = None,
    on_progress: Callable[[View], None] | None = None,
    *,
    until: Until = "empty",
    engine: Engine | None = None,
    child: Sequence[str] = CHILD,
    refill: Callable[[], None] | None = None,
    hang_s: float = HANG_S,
    notifier: Notifier | None = None,
    sinks: Sequence[Background] = (),
) -> Summary:
    """Work on a store's queue until it is empty, or as `until` says (loop.Until), or until SIGINT or SIGTERM.

    The first signal asks the children to save a checkpoint and waits for them; the second kills them. Without
    `load_task` nothing is prepared and code is not compared. A child without an event for `hang_s` is stopped.
    `refill` is called at the beginning and after each ended job, in this process under its lock, to queue more (a
    tuner's next trial). `sinks` are told of runs as the tracker is, and are waited for SINKS_S at the end. Raises
    UserError if another coordinator holds the store, DiskFull if the disk is full; then the work stays queued.
    """
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(contextlib.closing(engine or LocalEngine()))
        stack.enter_context(store.coordinator_lock())
        ledger = stack.enter_context(Ledger(store.queue_db))
        ledger.check()
        ledger.shares = load_shares(store)
        leftovers.sweep(store, running=ledger.in_state(State.RUNNING))
        interrupts = stack.enter_context(Interrupts())
        reporter = Reporter(ledger, tracker, on_progress, notifier, sinks)
        placement = Placement(store, ledger, slots, engine, child, load_task, reporter)
        try:
            with explain_os_errors(f"work on the store {store.root}"):
                Coordinator(store, ledger, slots, engine, placement, reporter, interrupts, hang_s, refill).run(until)
        finally:
            if tracker is not None:
                with contextlib.suppress(KeyboardInterrupt):  # second signal: the next coordinator writes the rest
                    tracker.close()
            for sink in sinks:
                with contextlib.suppress(KeyboardInterrupt):
                    sink.close(SINKS_S)
            if notifier is not None:
                with contextlib.suppress(KeyboardInterrupt):
                    notifier.close()
        reporter.note_tracked()
        reporter.summary.interrupted = interrupts.number
        reporter.summary.left = len(ledger.waiting(-1)) if until == "empty" else 0
        return reporter.summary
