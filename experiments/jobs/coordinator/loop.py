"""The coordinator's loop: take requests (also to preempt), place jobs, watch attempts, decide about ended ones."""

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import FrameType, TracebackType
from typing import Any, Literal, Self

from experiments.errors import Damaged, DiskFull
from experiments.events.accounting import attempt_costs
from experiments.events.event_log import content_of
from experiments.jobs.attempts import attempt as attempts
from experiments.jobs.attempts import outcomes
from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.attempts.publish import missing, publish
from experiments.jobs.coordinator.placement import Placement, ending_of_error
from experiments.jobs.engines.base import Engine, Exit
from experiments.jobs.queue.job import Claimed, Ending, Job, Outcome, State
from experiments.jobs.queue.queue import SHARING
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.processes.marked import end_marked
from experiments.records import record_time
from experiments.store.budget import BUDGET

# --- When different rows of a table fail alike, the rest of the table waits with the reason: it would fail one by one


# What a row's own settings bring about, such as divergence, does not concern the other rows.
CONCERNS_ALL = (Outcome.BUG, Outcome.USER_ERROR)
LINES = 3  # at the end of a log, that say why it failed
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:[eE][-+]?\d+)?")
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
Table = tuple[str, str, str]  # study, profile, corpus


class RepeatedFailures:
    """The failures that this coordinator has seen, by table, and by traceback or last lines."""

    def __init__(self, queue: WorkQueue) -> None:
        self._queue = queue
        self._rows: dict[tuple[Table, str], set[str]] = {}

    def add(self, job: Job, failure: Mapping[str, Any] | None, error: str) -> None:
        """Take note of a failed job; hold the waiting jobs of its tables if another row has failed alike.

        failure: the event of the attempt, with `cls`, `message` and `traceback`. error: the end of its log, too.
        """
        if failure is None or failure.get("cls") not in CONCERNS_ALL:
            return
        traced = traceback_in_short(failure)
        place, what = traced or lines_in_short(error), "traceback" if traced else "last lines"
        for member in job.members:
            rows = self._rows.setdefault((member[:3], place), set())
            rows.add(member.row)
            if len(rows) > 1:
                self._queue.hold_table(member, _why(sorted(rows), member.study, what, place))


def traceback_in_short(failure: Mapping[str, Any]) -> str:
    """The exception of a traceback and the frames that lead to it, without its message; "" if it has none.

    Two tracebacks are alike where these are equal: a message may name a size or a file of the row.
    """
    text = str(failure.get("traceback") or "")
    frames = [f"{file}:{line} ({name})" for file, line, name in _FRAME.findall(text)]
    last = [line for line in text.splitlines() if line and not line.startswith(" ")]
    return f"{last[-1].partition(':')[0]} at {' > '.join(reversed(frames))}" if frames and last else ""


def lines_in_short(error: str) -> str:
    """The last lines of a run's log without their numbers, which may be those of the row's settings.

    They are sorted, because the two streams of a command may be read in another order. Of a run that printed nothing:
    how it ended, without its command.
    """
    printed = outcomes.printed(error)
    return _NUMBER.sub("#", " / ".join(sorted(printed[-LINES:]))) if printed else error.partition(":")[0]


def _why(rows: list[str], study: str, what: str, place: str) -> str:
    named = ", ".join(rows[:3]) + (f" and {len(rows) - 3} more" if len(rows) > 3 else "")
    innermost = place.partition(" > ")[0]
    return (
        f"held: rows of {study} failed with the same {what} ({named}: {innermost}). "
        "Once the cause is mended, the same command or `ablations retry` goes on"
    )


# --- SIGINT and SIGTERM: the first lets children save a checkpoint; the second ends at once


class Interrupts:
    """While active, `number` is the first signal received (0: none); the second raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():  # Python handles signals in the main thread only
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.number:
            raise KeyboardInterrupt
        self.number = number


# --- Read events of running attempts, ask them to stop, kill those that do not


READ_S = 0.2  # interval of reading a child's events
GRACE_S = 600.0  # time between the request to stop and the kill
HUNG_GRACE_S = 20.0  # the same for a child that seems to hang
HANG_S = 1800.0  # a child without events for so long hangs


class Watch:
    """Watches running attempts; `live` holds them by run_id."""

    def __init__(self, engine: Engine, hang_s: float) -> None:
        self._engine, self._hang_s = engine, hang_s
        self._read_at = 0.0
        self.live: dict[str, RunningAttempt] = {}

    def ask(self, lives: Iterable[RunningAttempt], what: str) -> None:
        """Request children to save a checkpoint and end, each only once. `what`: "stop", "cancel" or "hung"."""
        for live in lives:
            if not live.asked and live.handle is not None:
                live.asked, live.asked_at = what, time.monotonic()
                self._engine.terminate(live.handle)

    def ended(self) -> Iterator[tuple[RunningAttempt, Exit]]:
        """Yield the attempts that have ended; read the events of the others and enforce time limits."""
        now = time.monotonic()
        read = now - self._read_at >= READ_S
        self._read_at = now if read else self._read_at
        for live in list(self.live.values()):
            if read:
                live.listen()
                self._measure_patience(live, now)
            ended = self._engine.poll(live.handle) if live.handle is not None else Exit(None)
            if ended is not None:
                yield live, ended

    def _measure_patience(self, live: RunningAttempt, now: float) -> None:
        if live.handle is None:
            return
        if not live.progress.started:  # a cluster may keep it waiting for days
            live.progress.doing = self._engine.waiting_for(live.handle) or live.progress.doing
            live.heard_at = now if self._engine.outlives else live.heard_at
        if not live.asked and now - live.heard_at > self._hang_s:
            self.ask([live], "hung")
        elif live.asked and now - live.asked_at > (HUNG_GRACE_S if live.asked == "hung" else GRACE_S):
            self._engine.kill(live.handle)


# --- The loop


POLL_S, IDLE_S = 0.05, 0.2  # longest wait of a round: for a child's end; without children, for requests
log = logging.getLogger(__name__)
# When to end: "empty" once the queue is empty; "stopped" never; "submitted" once everything possible is submitted to a
# cluster; "settled" once ended attempts are collected, without starting any.
Until = Literal["empty", "stopped", "submitted", "settled"]


class Coordinator:
    """The loop of `work`, which makes its parts (placement, reporter, …) and documents its arguments."""

    def __init__(
        self, placement: Placement, interrupts: Interrupts, hang_s: float, refill: Callable[[], None] | None
    ) -> None:
        self._store, self._queue, self._engine = placement.store, placement.queue, placement.engine
        self._placement, self._reporter, self._interrupts = placement, placement.reporter, interrupts
        self._watch = Watch(self._engine, hang_s)
        self._repeated_failures = RepeatedFailures(self._queue)
        self._refill, self._refilled_at = refill, -1  # number of ended jobs at the last refill
        self._seen_version = -1
        self._draining = False
        self._disk_full = ""  # message of a child that could not write

    def run(self, until: Until, only: Collection[str] | None = None) -> None:
        """Work until `until` holds, or until interrupted. Raises DiskFull if a child ran out of disk space.

        only: run_ids; other runs that wait at the beginning are left for the next coordinator.
        """
        try:
            for name in ("drain", "devices", SHARING):  # notes for or by a former coordinator
                self._queue.note(name)
            self._queue.release_held()
            if only is not None:
                self._queue.leave_others(only)
            self._recover()
            if until == "settled":
                self._take_requests()
                self._collect()
            else:
                self._ask_for_more()
            while not self._over(until):
                self._take_requests()
                if not self._ending_soon:
                    self._watch.live |= {live.run_id: live for live in self._placement.place(self._watch.live.values())}
                self._engine.wait(POLL_S if self._watch.live else IDLE_S)
                self._collect()
                self._ask_for_more()
                self._show()
        except KeyboardInterrupt:
            self._leave_at_once()
        except BaseException:  # the queue cannot be written, or a bug: the children save a checkpoint
            self._watch.ask(self._watch.live.values(), "stop")
            raise
        self._queue.note(SHARING)
        self._show(now=True)
        if self._disk_full:
            said = self._disk_full.rstrip(".")
            raise DiskFull(f"{said}. No new run was started; the same command continues once there is space.")

    @property
    def _ending_soon(self) -> bool:
        """Whether no further run is started."""
        return bool(self._interrupts.number or self._draining or self._disk_full)

    def _ask_for_more(self) -> None:
        summary = self._reporter.summary
        ended = summary.finished + summary.failed + summary.cancelled
        if self._refill is not None and ended != self._refilled_at and not self._ending_soon:
            self._refilled_at = ended
            self._refill()

    def _over(self, until: Until) -> bool:
        if until == "settled":
            return True
        working = self._placement.preparation.current or self._placement.look
        if until == "submitted" and not working and not self._interrupts.number:
            return True
        if self._watch.live:
            return False
        if self._ending_soon:
            return True
        return until == "empty" and not self._placement.preparation.current and not self._queue.waiting(1)

    def _take_requests(self) -> None:
        """Ask the child of a cancelled run to stop; all of them after a signal, on a full disk, or without a budget."""
        version = self._queue.data_version()
        if version != self._seen_version:
            self._seen_version, self._placement.look = version, True
            self._draining = "drain" in self._queue.notes()
            cancelled = self._queue.in_state(State.RUNNING, request="cancel")
            self._watch.ask([self._watch.live[r] for r in cancelled if r in self._watch.live], "cancel")
        account, lives = self._placement.account, self._watch.live.values()
        account.read()
        if account.changed:
            account.changed = False
            self._queue.release_held(BUDGET)
            self._placement.look = True
        used_up = account.used_up({(live.run_id, live.number): live.lasted_s for live in lives})
        if self._interrupts.number or self._disk_full or used_up:
            self._watch.ask(lives, "stop")

    def _collect(self) -> None:
        for live, ended in self._watch.ended():
            self._finish(live, ended)
        self._placement.collect()

    def _finish(self, live: RunningAttempt, ended: Exit) -> None:
        """Move what the attempt completed into place, and decide about its job."""
        if live.handle is not None and not self._engine.outlives:  # else it may have ended long ago
            attempts.say_ended(live)
        if not self._engine.outlives and (left := end_marked(live.folder)):
            log.warning("%s attempt %d left processes behind, now ended: %s", live.run_id, live.number, left)
        content = content_of(live.folder)  # before reading, so that later events change it
        live.listen()
        now = self._now(live)
        try:
            ending = self._ending(live, ended)
        except Exception as error:
            ending = ending_of_error(error, live.run_id)
        steps = live.progress.first_step, live.progress.step
        self._placement.account.end(live.run_id, live.number, ending.outcome, live.lasted_s)
        self._queue.end(live.run_id, live.number, ending, steps)
        self._queue.events_read(live.run_id, live.number, content, live.tail.damaged)
        self._watch.live.pop(live.run_id, None)
        if ending.state is State.FINISHED:
            self._placement.learn_memory(live)
        self._placement.look = True
        self._reporter.ended(now, ending.state, ending.error)
        if ending.state is State.FAILED:
            self._repeated_failures.add(now.job, live.progress.failure, ending.error)
        if ending.outcome is Outcome.DISK_FULL:
            self._disk_full = ending.detail
        if ending.outcome is Outcome.DEVICE:
            self._placement.quarantine(live.slot, str((live.progress.failure or {}).get("message", "")))
        if ending.detail or ending.error:
            log.info("%s attempt %d: %s", live.run_id, live.number, ending.detail or ending.error)

    def _now(self, live: RunningAttempt) -> Claimed:
        """The job in its present form: more may have been requested since it was claimed."""
        try:
            return self._queue.job(live.run_id)
        except Damaged:
            return live.claimed

    def _ending(self, live: RunningAttempt, ended: Exit) -> Ending:
        job = self._now(live).job
        replaced = publish(self._store, live.run_id, live.number, job.rerun_after).replaced
        self._queue.score_again(job, replaced)
        job = self._now(live).job
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

    def _recover(self) -> None:
        """Take over from an earlier coordinator: finish completed attempts, stop orphans, queue the rest again.

        On a cluster running attempts continue: they do not depend on a coordinator.
        """
        for run_id in self._queue.in_state(State.RUNNING):
            claimed = self._placement.job(run_id)
            if claimed is None:  # its child ends by itself, as its coordinator is gone
                continue
            live = attempts.adopt(self._store, self._engine, claimed, self._placement.slots)
            self._watch.live[run_id] = live
            live.listen()
            if live.handle is None:
                live.asked = "" if self._engine.outlives else "stop"  # the end of its coordinator is not its failure
                self._finish(live, Exit(None))
            elif not self._engine.outlives:
                self._watch.ask([live], "stop")
        account = self._placement.account
        for run_id, number in account.open.keys() - {(live.run_id, live.number) for live in self._watch.live.values()}:
            costs = {one.attempt: one.wall_s for one in attempt_costs(self._store, run_id)}  # the queue was removed
            account.end(run_id, number, "lost", costs.get(number, record_time() - account.open[run_id, number].t))
        self._disk_full = ""  # what an ended attempt said then; there may be space now
        self._reporter.catch_up()

    def _leave_at_once(self) -> None:
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
