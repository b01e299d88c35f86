"""The coordinator's reports: progress for the queue and the terminal, and runs for the tracking store."""

import contextlib
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from experiments.errors import Damaged
from experiments.identity import seed_in_words
from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.coordinator.background import Background
from experiments.jobs.queue.job import Claimed, Job, State
from experiments.jobs.queue.time_left import left_s
from experiments.jobs.queue.work_queue import WorkQueue
from experiments.store.tracked_run import TrackedRun

PROGRESS_S = 0.5
STATUS = {
    State.RUNNING: "RUNNING",
    State.FINISHED: "FINISHED",
    State.FAILED: "FAILED",
    State.CANCELLED: "KILLED",
    State.WAITING: "KILLED",  # the run was stopped; its status is RUNNING again after a resume
}


@dataclass
class Summary:
    """Numbers of a coordinator's runs, by result. interrupted: the signal that ended the work; 0 if none did."""

    finished: int = 0
    failed: int = 0
    cancelled: int = 0
    interrupted: int = 0
    left: int = 0  # runs that were not started, for example after `ablations work --drain`
    failures: dict[str, str] = field(default_factory=dict)  # description of a run → its error


@dataclass(frozen=True)
class View:
    """The state that `on_progress` receives about twice a second."""

    counts: dict[State, int]
    running: Sequence[RunningAttempt]
    preparing: str  # description of the present preparation; "" if there is none
    stopping: bool
    left_s: float | None = None  # predicted seconds until the queue is empty


def tracked_run(job: Job, state: State, error: str = "") -> TrackedRun:
    """Return a job in the form that the tracking store takes."""
    return TrackedRun(job.spec, STATUS[state], job.members, error)


class Reporter:
    def __init__(
        self,
        queue: WorkQueue,
        tracker: Background | None,
        on_progress: Callable[[View], None] | None,
        sinks: Sequence[Background] = (),
    ) -> None:
        self._sinks = sinks
        self._queue, self._tracker, self._on_progress = queue, tracker, on_progress
        self._shown_at = 0.0
        self.summary = Summary()

    def ended(self, claimed: Claimed, state: State, error: str = "") -> None:
        """Report that a job has ended or waits again."""
        if state.ended:
            setattr(self.summary, state.value, getattr(self.summary, state.value) + 1)
            if state is State.FAILED:
                rows = ", ".join(dict.fromkeys(member.row for member in claimed.job.members)) or claimed.job.run_id
                self.summary.failures[f"{rows} ({seed_in_words(claimed.job.spec.seed)})"] = error
        self.track(claimed, state, error)

    def track(self, claimed: Claimed, state: State, error: str = "") -> None:
        for sink in self._sinks:
            sink.track(tracked_run(claimed.job, state, error))
        if self._tracker is not None:
            self._tracker.track(tracked_run(claimed.job, state, error))

    def catch_up(self) -> None:
        """Report the ends of runs that an earlier coordinator could not write to the tracking store."""
        if self._tracker is not None:
            for state in (State.FINISHED, State.FAILED, State.CANCELLED):
                for run_id, error in self._queue.untracked(state):
                    with contextlib.suppress(Damaged):  # if the queue's entry is damaged, the run is not reported
                        self.track(self._queue.job(run_id), state, error)

    def show(
        self, live: Sequence[RunningAttempt], preparing: tuple[str, str], *, stopping: bool, now: bool = False
    ) -> None:
        """Write and show the progress, at most every PROGRESS_S.

        preparing: (inputs_key, text) of the present preparation.
        """
        if not now and time.monotonic() - self._shown_at < PROGRESS_S:
            return
        self._shown_at = time.monotonic()
        if live:
            now_at = [(one.run_id, one.progress, one.claimed.job.total_steps) for one in live]
            self._queue.progress((run_id, at.step, at.doing, at.left_s(total)) for run_id, at, total in now_at)
        if preparing[0]:
            self._queue.explain_waiting(*preparing)
        self.note_tracked()
        if self._on_progress is not None:
            left = left_s(self._queue, _speed(live))
            self._on_progress(View(self._queue.counts(), live, preparing[1], stopping, left))

    def note_tracked(self) -> None:
        done = self._tracker.synced() if self._tracker is not None else []
        if done:
            self._queue.tracked(done)


def _speed(running: Sequence[RunningAttempt]) -> float | None:
    """Return the mean cost per second of the running attempts; None if it is unknown for all of them."""
    jobs = [(live.progress, live.claimed.job) for live in running]
    speeds = [speed for made, job in jobs if (speed := made.speed(job.spec.cost, job.total_steps)) is not None]
    return statistics.fmean(speeds) if speeds else None
