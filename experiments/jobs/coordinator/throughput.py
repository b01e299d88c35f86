"""Measure the throughput of the runs on a GPU from their events, in time windows with a constant number of runs."""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.coordinator.sharing import Window
from experiments.records import TRAINING

WINDOW_S = 30.0  # shortest length of a window in seconds
# Smallest and largest number of measurements of a training run in a window. Only the newest MOST measurements are used.
LEAST, MOST = 3, 200
TOKENS = "target_tokens_per_s"  # metric of the built-in tasks; it does not count time for evaluations and checkpoints


@dataclass(frozen=True)
class RunReport:
    """The latest report of a run. point: step and time (s) of the newest point of its curve."""

    run_id: str
    state: Literal["starting", "training", "evaluating"]
    point: tuple[int, float] | None = None
    tokens_per_s: float | None = None

    @classmethod
    def of(cls, live: RunningAttempt) -> Self:
        """Return the report of a running attempt."""
        progress = live.progress
        if progress.parts or TRAINING not in live.expected:
            state: Literal["starting", "training", "evaluating"] = "evaluating"
        else:
            state = "starting" if progress.last_point is None else "training"
        return cls(live.run_id, state, progress.last_point, progress.metrics.get(TOKENS))


class Throughput:
    """Measures the rates of the runs on one GPU in time windows.

    A window begins when the number of runs changes, or when the window before it is complete. Only the time in which no
    run is starting counts for the length of a window. If one run ends and another run replaces it immediately, the
    window goes on.

    The rate of a run is the median of its measurements in the window, so that single slow steps have no effect. A
    measurement is the number of target tokens/s that the run reports. If the run does not report this number, a
    measurement is the number of steps/s between two points of the run's curve.
    """

    def __init__(self) -> None:
        self._count = 0
        self._steady_s = 0.0
        self._steady_at: float | None = None  # time of the last call of `observe`, if no run was starting then
        self._points: dict[str, tuple[int, float]] = {}
        self._rates: dict[str, deque[float]] = {}
        self._in_tokens: dict[str, bool] = {}

    def observe(self, now: float, readings: Sequence[RunReport]) -> Window | None:
        """Take the latest reports of the runs. Return the window if it is now complete, otherwise None.

        now: the time in seconds by a monotonic clock.
        """
        present = {reading.run_id for reading in readings}
        for ended in self._points.keys() - present:  # forget ended attempts, so that a resumed run starts anew
            for known in (self._points, self._rates, self._in_tokens):
                known.pop(ended, None)
        if len(readings) != self._count:
            self._count = len(readings)
            self._begin()
        steady = bool(readings) and all(reading.state != "starting" for reading in readings)
        was_steady = self._steady_at is not None
        if steady and self._steady_at is not None:
            self._steady_s += now - self._steady_at
        self._steady_at = now if steady else None
        for reading in readings:
            self._take(reading, counts=steady and was_steady)
        training = [reading.run_id for reading in readings if reading.state == "training"]
        if not training or self._steady_s < WINDOW_S:
            return None
        if any(len(self._rates.get(run_id, ())) < LEAST for run_id in training):
            return None
        rates = {run_id: statistics.median(self._rates[run_id]) for run_id in training}
        window = Window(self._count, rates, all(self._in_tokens[run_id] for run_id in training))
        self._begin()
        return window

    def _begin(self) -> None:
        self._steady_s = 0.0
        self._rates.clear()

    def _take(self, reading: RunReport, *, counts: bool) -> None:
        """Take the newest point of a run's curve.

        The first point of a run gives no measurement. The first point only begins the interval of the first
        measurement, so that warm-up does not count.
        """
        if reading.point is None:
            return
        before = self._points.get(reading.run_id)
        if before is not None and reading.point[0] <= before[0]:
            return
        self._points[reading.run_id] = reading.point
        if before is None or not counts or reading.state != "training":
            return
        in_tokens = reading.tokens_per_s is not None
        if reading.tokens_per_s is not None:
            rate = reading.tokens_per_s
        elif reading.point[1] > before[1]:
            rate = (reading.point[0] - before[0]) / (reading.point[1] - before[1])
        else:
            return
        if self._in_tokens.setdefault(reading.run_id, in_tokens) == in_tokens:
            self._rates.setdefault(reading.run_id, deque(maxlen=MOST)).append(rate)
