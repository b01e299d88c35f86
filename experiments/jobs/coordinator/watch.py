"""Read events of running attempts, ask them to stop, kill those that do not."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from experiments.errors import DiskFull, UserError
from experiments.jobs.engines.base import Engine, Exit
from experiments.jobs.queue.job import Ending, Outcome, State

if TYPE_CHECKING:
    from experiments.jobs.attempts.attempt import RunningAttempt


READ_S = 0.2  # interval of reading a child's events
GRACE_S = 600.0  # time between the request to stop and the kill
HUNG_GRACE_S = 20.0  # the same for a child that seems to hang
HANG_S = 1800.0  # a child without events for so long hangs


class Watch:
    """Watches running attempts; `live` holds them by run_id."""

    def __init__(self, engine: Engine, hang_s: float = HANG_S) -> None:
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


# --- Confine errors in one run's folder to that run


WHOLE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
log = logging.getLogger(__name__)


def ending_of_error(error: Exception, run_id: str) -> Ending:
    """The ending of a run with unusable files. Raises the error again if it concerns the whole disk."""
    if isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in WHOLE_DISK):
        raise error
    if isinstance(error, UserError):
        return Ending(State.FAILED, Outcome.USER_ERROR, error=str(error))
    log.info("the files of %s", run_id, exc_info=error)
    return Ending(
        State.FAILED,
        Outcome.BUG,
        error=f"The files in runs/{run_id} of the store cannot be used ({type(error).__name__}: {error}). Restore the "
        "folder from a backup or move it away, then `ablations retry`.",
    )
