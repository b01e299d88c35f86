"""The attempts under way: reading their events, asking them to end, and not waiting for ever for either."""

import time
from collections.abc import Iterable, Iterator

from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.engines.base import Engine, Exit

READ_S = 0.2  # how often a child's events are read
GRACE_S = 600.0  # a child that was asked to end and has not by then is killed
HUNG_GRACE_S = 20.0  # the same for one that seems to hang
HANG_S = 1800.0  # no event for that long: it hangs


class Watch:
    """`live` holds the attempts by run_id."""

    def __init__(self, engine: Engine, hang_s: float = HANG_S) -> None:
        self._engine, self._hang_s = engine, hang_s
        self._read_at = 0.0
        self.live: dict[str, RunningAttempt] = {}

    def ask(self, lives: Iterable[RunningAttempt], what: str) -> None:
        """Ask children to save a checkpoint and end; each is asked once."""
        for live in lives:
            if not live.asked and live.handle is not None:
                live.asked, live.asked_at = what, time.monotonic()
                self._engine.terminate(live.handle)

    def ended(self) -> Iterator[tuple[RunningAttempt, Exit]]:
        """The attempts that have ended by now; the others' events are read, and their patience measured."""
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
        if not live.progress.started:  # a cluster may let it wait for days
            live.progress.doing = self._engine.waiting_for(live.handle) or live.progress.doing
            live.heard_at = now if self._engine.outlives else live.heard_at
        if not live.asked and now - live.heard_at > self._hang_s:
            self.ask([live], "hung")
        elif live.asked and now - live.asked_at > (HUNG_GRACE_S if live.asked == "hung" else GRACE_S):
            self._engine.kill(live.handle)
