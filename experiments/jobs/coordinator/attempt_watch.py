"""Read the events of running attempts, ask attempts to stop, and kill those that do not stop in time."""

import time
from collections.abc import Iterable, Iterator
from typing import Literal

from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.engines.engine import Engine, Exit

READ_S = 0.2  # seconds between two readings of the events
GRACE_S = 600.0  # seconds from the request to stop until the child is killed
HUNG_GRACE_S = 20.0  # seconds from the request to stop until a child that seems to hang is killed
HANG_S = 1800.0  # a child without an event for this time counts as hanging
StopReason = Literal["stop", "cancel", "hung"]


class AttemptWatch:
    """Watches the running attempts. `live` maps run_ids to attempts."""

    def __init__(self, engine: Engine, hang_s: float) -> None:
        self._engine = engine
        self._hang_s = hang_s
        self._read_at = 0.0
        self.live: dict[str, RunningAttempt] = {}

    def request_stop(self, attempts: Iterable[RunningAttempt], reason: StopReason) -> None:
        """Ask children to save a checkpoint and end. Each child is asked only once, for the first reason."""
        for live in attempts:
            if not live.asked and live.handle is not None:
                live.asked = reason
                live.asked_at = time.monotonic()
                self._engine.terminate(live.handle)

    def ended(self) -> Iterator[tuple[RunningAttempt, Exit]]:
        """Yield each attempt that has ended, with its exit. Also read new events and enforce the time limits."""
        now = time.monotonic()
        read = now - self._read_at >= READ_S
        if read:
            self._read_at = now
        for live in list(self.live.values()):
            if read:
                live.listen()
                self._enforce_limits(live, now)
            ended = Exit(None) if live.handle is None else self._engine.poll(live.handle)
            if ended is not None:
                yield live, ended

    def _enforce_limits(self, live: RunningAttempt, now: float) -> None:
        """Ask a child that hangs to stop. Kill a child that has not ended within the grace time after a request."""
        if live.handle is None:
            return
        if not live.progress.started:  # on a cluster, an attempt may wait for days before it starts
            live.progress.doing = self._engine.waiting_for(live.handle) or live.progress.doing
            if self._engine.outlives:
                live.heard_at = now
        if live.asked:
            grace_s = HUNG_GRACE_S if live.asked == "hung" else GRACE_S
            if now - live.asked_at > grace_s:
                self._engine.kill(live.handle)
        elif now - live.heard_at > self._hang_s:
            self.request_stop([live], "hung")
