"""The coordinator's loop: take requests, place jobs, watch attempts, and decide what follows when an attempt ends."""

import logging
import signal
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Literal

from experiments.errors import Damaged, DiskFull
from experiments.events.accounting import attempt_costs
from experiments.events.event_log import content_of
from experiments.jobs.attempts import attempt as attempts
from experiments.jobs.attempts import outcomes
from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.attempts.publish import missing, publish
from experiments.jobs.coordinator.attempt_watch import AttemptWatch
from experiments.jobs.coordinator.interrupts import Interrupts
from experiments.jobs.coordinator.placement import Placement, ending_of_error
from experiments.jobs.coordinator.repeated_failures import RepeatedFailures
from experiments.jobs.engines.engine import Exit
from experiments.jobs.queue.job import Claimed, Ending, Outcome, State
from experiments.jobs.queue.queue_connection import SHARING
from experiments.processes.marked import end_marked
from experiments.records import record_time
from experiments.store.budget import BUDGET

POLL_S = 0.05  # longest wait for the end of a child in one round of the loop
IDLE_S = 0.2  # longest wait for requests in one round without children
log = logging.getLogger(__name__)
# The condition under which the loop ends.
#   "empty"      No job waits or runs.
#   "stopped"    The loop ends only on request, for example after a signal or `ablations work --drain`.
#   "submitted"  All jobs that can be submitted to the cluster are submitted.
#   "settled"    The loop ends immediately: it collects the attempts that have ended, and starts no attempt.
Until = Literal["empty", "stopped", "submitted", "settled"]


class Coordinator:
    """The loop that `work` (work.py) runs. The docstring of `work` explains `hang_s` and `refill`."""

    def __init__(
        self, placement: Placement, interrupts: Interrupts, hang_s: float, refill: Callable[[], None] | None
    ) -> None:
        self._store, self._queue, self._engine = placement.store, placement.queue, placement.engine
        self._placement, self._reporter, self._interrupts = placement, placement.reporter, interrupts
        self._watch = AttemptWatch(self._engine, hang_s)
        self._repeated_failures = RepeatedFailures(self._queue)
        self._refill = refill
        self._refilled_at = -1  # number of ended jobs at the last refill
        self._seen_version = -1
        self._draining = False
        self._disk_full = ""  # error message of a child that could not write to the disk

    def run(self, until: Until, only: Collection[str] | None = None) -> None:
        """Work until the condition `until` is met, or until a signal arrives.

        Raises DiskFull if a child ran out of disk space.

        only: run_ids to work on. Other runs that wait at the beginning are left for the next coordinator.
        """
        try:
            for name in ("drain", "devices", SHARING):  # remove the notes that an earlier coordinator wrote or received
                self._queue.note(name)
            self._queue.release_held()
            if only is not None:
                self._queue.leave_others(only)
            self._recover()
            if until == "settled":
                self._take_requests()
                self._collect()
            else:
                self._refill_queue()
            while not self._is_over(until):
                self._take_requests()
                if not self._ending_soon:
                    self._watch.live |= {live.run_id: live for live in self._placement.place(self._watch.live.values())}
                self._engine.wait(POLL_S if self._watch.live else IDLE_S)
                self._collect()
                self._refill_queue()
                self._show()
        except KeyboardInterrupt:
            self._kill_all()
        except BaseException:  # a bug, or a queue that cannot be written; the children can still save a checkpoint
            self._watch.request_stop(self._watch.live.values(), "stop")
            raise
        self._queue.note(SHARING)
        self._show(now=True)
        if self._disk_full:
            message = self._disk_full.rstrip(".")
            raise DiskFull(f"{message}. No new run was started. Free some space, then continue with the same command.")

    @property
    def _ending_soon(self) -> bool:
        """Whether no further run is started."""
        return bool(self._interrupts.number or self._draining or self._disk_full)

    def _is_over(self, until: Until) -> bool:
        if until == "settled":
            return True
        preparing = bool(self._placement.preparation.current)
        if until == "submitted" and not (preparing or self._placement.look or self._interrupts.number):
            return True
        if self._watch.live:
            return False
        if self._ending_soon:
            return True
        return until == "empty" and not preparing and not self._queue.waiting(1)

    def _refill_queue(self) -> None:
        """Call `refill` at the beginning and after each ended job, so that `refill` can queue more jobs."""
        summary = self._reporter.summary
        ended = summary.finished + summary.failed + summary.cancelled
        if self._refill is not None and ended != self._refilled_at and not self._ending_soon:
            self._refilled_at = ended
            self._refill()

    def _take_requests(self) -> None:
        """Read new requests from the queue and the budget, and ask the children of cancelled runs to stop.

        After a signal, if the disk is full, or if the budget is used up, ask all children to stop.
        """
        version = self._queue.data_version()
        if version != self._seen_version:
            self._seen_version, self._placement.look = version, True
            self._draining = "drain" in self._queue.notes()
            cancelled = self._queue.in_state(State.RUNNING, request="cancel")
            self._watch.request_stop([self._watch.live[r] for r in cancelled if r in self._watch.live], "cancel")
        over_budget = self._read_budget()
        if self._interrupts.number or self._disk_full or over_budget:
            self._watch.request_stop(self._watch.live.values(), "stop")

    def _read_budget(self) -> bool:
        """Read the budget, release the runs that an earlier budget held, and return whether the budget is used up."""
        account = self._placement.account
        account.read()
        if account.changed:
            account.changed = False
            self._queue.release_held(BUDGET)
            self._placement.look = True
        elapsed = {(live.run_id, live.number): live.lasted_s for live in self._watch.live.values()}
        return bool(account.used_up(elapsed))

    def _collect(self) -> None:
        for live, ended in self._watch.ended():
            self._finish(live, ended)
        self._placement.collect()

    def _finish(self, live: RunningAttempt, ended: Exit) -> None:
        """Publish the completed parts of an attempt, decide the next state of its job, and record the decision."""
        if not self._engine.outlives:
            if live.handle is not None:  # without a handle, the time of the end is unknown
                attempts.say_ended(live)
            if left := end_marked(live.folder):
                log.warning("%s attempt %d left processes behind, now ended: %s", live.run_id, live.number, left)
        # Take the fingerprint before the events are read, so that it does not match if further events are written.
        content = content_of(live.folder)
        live.listen()
        claimed = self._present_job(live)
        try:
            ending = self._publish_and_decide(live, ended)
        except Exception as error:
            ending = ending_of_error(error, live.run_id)
        steps = live.progress.first_step, live.progress.step
        self._placement.account.end(live.run_id, live.number, ending.outcome, live.lasted_s)
        self._queue.end(live.run_id, live.number, ending, steps)
        self._queue.events_read(live.run_id, live.number, content, live.tail.damaged)
        self._watch.live.pop(live.run_id, None)
        self._placement.look = True
        self._reporter.ended(claimed, ending.state, ending.error)
        self._learn(live, claimed, ending)
        if ending.detail or ending.error:
            log.info("%s attempt %d: %s", live.run_id, live.number, ending.detail or ending.error)

    def _publish_and_decide(self, live: RunningAttempt, ended: Exit) -> Ending:
        job = self._present_job(live).job
        replaced = publish(self._store, live.run_id, live.number, job.rerun_after).replaced
        self._queue.score_again(job, replaced)
        job = self._present_job(live).job
        return outcomes.decide(
            replace(live.claimed, job=job),
            live.progress,
            ended.code,
            missing(self._store, job),
            expected=live.expected,
            asked=live.asked,
            withdrawn=ended.withdrawn,
            log_tail=attempts.log_tail(self._store, live.folder),
            limit_gb=live.slot.memory_gb,
            shared=live.slot.kind == "cuda" and live.slot.share < 1,
        )

    def _learn(self, live: RunningAttempt, claimed: Claimed, ending: Ending) -> None:
        """Use the facts of an ended attempt for other runs: memory, failed device, full disk, repeated failure."""
        failure = live.progress.failure
        if ending.state is State.FINISHED:
            self._placement.learn_memory(live)
        if ending.state is State.FAILED:
            self._repeated_failures.add(claimed.job, failure, ending.error)
        if ending.outcome is Outcome.DISK_FULL:
            self._disk_full = ending.detail
        if ending.outcome is Outcome.DEVICE:
            self._placement.quarantine(live.slot, str((failure or {}).get("message", "")))

    def _present_job(self, live: RunningAttempt) -> Claimed:
        """Return the present version of the job, which may need more evaluations than when it was claimed.

        If the entry of the queue is damaged, return the version that was claimed.
        """
        try:
            return self._queue.job(live.run_id)
        except Damaged:
            return live.claimed

    def _recover(self) -> None:
        """Take over the running attempts of an earlier coordinator.

        Decide about the jobs whose attempts have ended, and ask orphaned children to stop. On a cluster, attempts
        continue, because they do not depend on a coordinator.
        """
        for run_id in self._queue.in_state(State.RUNNING):
            claimed = self._placement.job(run_id)
            if claimed is None:  # a damaged entry; its child ends by itself, because its coordinator is gone
                continue
            live = attempts.adopt(self._store, self._engine, claimed, self._placement.slots)
            self._watch.live[run_id] = live
            live.listen()
            if live.handle is None:
                # a child on this machine ends with its coordinator; this end is not counted as a failure
                live.asked = "" if self._engine.outlives else "stop"
                self._finish(live, Exit(None))
            elif not self._engine.outlives:
                self._watch.request_stop([live], "stop")
        self._settle_account()
        self._disk_full = ""  # the message of an earlier attempt; there may be space now
        self._reporter.catch_up()

    def _settle_account(self) -> None:
        """End the attempts that are open in the account but do not run, for example after the queue was removed."""
        account = self._placement.account
        running = {(live.run_id, live.number) for live in self._watch.live.values()}
        for run_id, number in account.open.keys() - running:
            costs = {one.attempt: one.wall_s for one in attempt_costs(self._store, run_id)}
            account.end(run_id, number, "lost", costs.get(number, record_time() - account.open[run_id, number].t))

    def _kill_all(self) -> None:
        """Kill all children without waiting for a checkpoint, and record how their attempts ended."""
        for live in self._watch.live.values():
            live.asked = live.asked or "stop"
            if live.handle is not None:
                self._engine.kill(live.handle)
        for live in list(self._watch.live.values()):
            self._finish(live, Exit(-signal.SIGKILL))

    def _show(self, now: bool = False) -> None:
        preparation = self._placement.preparation
        self._reporter.show(
            tuple(self._watch.live.values()),
            (preparation.current, self._placement.doing),
            stopping=bool(self._interrupts.number or self._disk_full),
            now=now,
        )
