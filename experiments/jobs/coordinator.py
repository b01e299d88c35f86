"""The coordinator: the one process that owns a store's work.

It takes jobs from the queue, starts a child for each on a free slot, reads the children's events, moves what they
have completed into place, and decides what becomes of what they have not. It can die at any moment: the next one
takes up what it left (`_recover`).
"""

import contextlib
import logging
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal

from experiments.jobs import attempts, outcomes
from experiments.jobs.attempts import Live
from experiments.jobs.background import Background
from experiments.jobs.engines.base import CHILD, Engine, Exit
from experiments.jobs.engines.local import LocalEngine
from experiments.jobs.interrupts import Interrupts
from experiments.jobs.ledger import Ledger
from experiments.jobs.placement import Placement
from experiments.jobs.preparation import LoadTask
from experiments.jobs.promote import missing, promote
from experiments.jobs.reporter import Reporter, Summary, View
from experiments.jobs.slots import Slot
from experiments.jobs.states import State
from experiments.store import Store, explain_os_errors

POLL_S, IDLE_S = 0.05, 0.2  # how long a loop waits for a child's end at most; without a child, for requests
READ_S = 0.2  # how often a child's events are read
GRACE_S = 600.0  # a child that was asked to end and has not by then is killed
log = logging.getLogger(__name__)


def work(
    store: Store,
    slots: Sequence[Slot],
    load_task: LoadTask | None = None,
    tracker: Background | None = None,
    on_progress: Callable[[View], None] | None = None,
    *,
    until: Literal["empty", "stopped"] = "empty",
    engine: Engine | None = None,
    child: Sequence[str] = CHILD,
    refill: Callable[[], None] | None = None,
) -> Summary:
    """Work on a store's queue until it is empty (or for ever: "stopped"), or until SIGINT or SIGTERM.

    The first signal asks the children to save a checkpoint and waits for them; the second kills them. Without
    `load_task` nothing is prepared and code is not compared. `refill` is called at the beginning and whenever a job has
    ended, in this process and under its lock: it may queue more (a tuner's next trial). Raises UserError if another
    coordinator holds the store.
    """
    with store.coordinator_lock(), contextlib.ExitStack() as stack:
        ledger = stack.enter_context(contextlib.closing(Ledger(store.queue_db)))
        engine = stack.enter_context(contextlib.closing(engine or LocalEngine()))
        interrupts = stack.enter_context(Interrupts())
        reporter = Reporter(ledger, tracker, on_progress)
        placement = Placement(store, ledger, slots, engine, child, load_task, reporter)
        try:
            with explain_os_errors(f"work on the store {store.root}"):
                Coordinator(store, ledger, slots, engine, placement, reporter, interrupts, refill).run(until)
        finally:
            if tracker is not None:
                with contextlib.suppress(KeyboardInterrupt):  # in a hurry: the next coordinator tells the rest
                    tracker.close()
        reporter.note_tracked()
        reporter.summary.interrupted = interrupts.number
        return reporter.summary


class Coordinator:
    def __init__(
        self,
        store: Store,
        ledger: Ledger,
        slots: Sequence[Slot],
        engine: Engine,
        placement: Placement,
        reporter: Reporter,
        interrupts: Interrupts,
        refill: Callable[[], None] | None = None,
    ) -> None:
        self._store, self._ledger, self._slots, self._engine = store, ledger, slots, engine
        self._placement, self._reporter, self._interrupts = placement, reporter, interrupts
        self._refill, self._refilled_at = refill, -1  # jobs ended by then
        self._live: dict[str, Live] = {}
        self._seen_version = -1
        self._read_at = 0.0

    def run(self, until: str) -> None:
        try:
            self._recover()
            self._ask_for_more()
            while not self._over(until):
                self._take_requests()
                if not self._interrupts.number:
                    leased = {live.slot.name for live in self._live.values()}
                    self._live |= {live.run_id: live for live in self._placement.place(leased)}
                self._engine.wait(POLL_S if self._live else IDLE_S)
                self._watch()
                self._placement.collect()
                self._ask_for_more()
                self._show()
        except KeyboardInterrupt:
            self._leave_at_once()
        self._show(now=True)

    def _ask_for_more(self) -> None:
        summary = self._reporter.summary
        ended = summary.finished + summary.failed + summary.cancelled
        if self._refill is not None and ended != self._refilled_at and not self._interrupts.number:
            self._refilled_at = ended
            self._refill()

    def _over(self, until: str) -> bool:
        if self._live:
            return False
        if self._interrupts.number:
            return True
        return until == "empty" and not self._placement.preparation.current and not self._ledger.waiting(1)

    def _take_requests(self) -> None:
        version = self._ledger.data_version()
        if version != self._seen_version:
            self._seen_version, self._placement.look = version, True
            cancelled = self._ledger.in_state(State.RUNNING, request="cancel")
            self._ask([self._live[run_id] for run_id in cancelled if run_id in self._live], "cancel")
        if self._interrupts.number:
            self._ask(self._live.values(), "stop")

    def _ask(self, lives: Iterable[Live], what: str) -> None:
        for live in lives:
            if not live.asked and live.handle is not None:
                live.asked, live.asked_at = what, time.monotonic()
                self._engine.terminate(live.handle)

    def _watch(self) -> None:
        now = time.monotonic()
        read = now - self._read_at >= READ_S
        self._read_at = now if read else self._read_at
        for live in list(self._live.values()):
            if read:
                live.record.take(live.tail.read())
            if live.asked and live.handle is not None and now - live.asked_at > GRACE_S:
                self._engine.kill(live.handle)
            ended = self._engine.poll(live.handle) if live.handle is not None else Exit(None)
            if ended is not None:
                self._finish(live, ended)

    def _finish(self, live: Live, ended: Exit) -> None:
        """Move what the attempt has completed into place, and decide what becomes of its job."""
        live.record.take(live.tail.read())
        promote(self._store, live.run_id, live.number)
        now = self._ledger.job(live.run_id)  # more may have been asked for since
        ending = outcomes.decide(
            replace(live.claimed, job=now.job),
            live.record,
            ended.code,
            missing(self._store, now.job),
            expected=live.expected,
            asked=live.asked,
            log_tail=attempts.log_tail(self._store, live.folder),
        )
        self._ledger.end(live.run_id, live.number, ending, (live.record.first_step, live.record.step))
        self._live.pop(live.run_id, None)
        self._placement.look = True
        self._reporter.ended(now, ending.state, ending.error)
        if ending.detail or ending.error:
            log.info("%s attempt %d: %s", live.run_id, live.number, ending.detail or ending.error)

    def _recover(self) -> None:
        """Take up what a dead coordinator has left: finish what is done, stop orphans, let the rest wait again."""
        for run_id in self._ledger.in_state(State.RUNNING):
            live = attempts.adopt(self._store, self._engine, self._ledger.job(run_id), self._slots)
            self._live[run_id] = live
            if live.handle is None:
                live.asked = "stop"  # it ended with its coordinator: that does not count against it
                self._finish(live, Exit(None))
            else:
                self._ask([live], "stop")
        self._reporter.catch_up()

    def _leave_at_once(self) -> None:
        for live in self._live.values():
            live.asked = live.asked or "stop"
            if live.handle is not None:
                self._engine.kill(live.handle)
        for live in list(self._live.values()):
            self._finish(live, Exit(-signal.SIGKILL))

    def _show(self, now: bool = False) -> None:
        preparation = self._placement.preparation
        self._reporter.show(
            tuple(self._live.values()),
            (preparation.current, preparation.doing),
            stopping=bool(self._interrupts.number),
            now=now,
        )
