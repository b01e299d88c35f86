"""The progress of an attempt, collected from its events."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from experiments.events.event_log import ENDS


@dataclass
class AttemptProgress:
    """The progress of an attempt, computed from its events (experiments/events/lines.py) in their order."""

    step: int | None = None
    first_step: int | None = None
    saved_step: int = 0  # step of the last checkpoint
    parts: int = 0  # number of completed parts (the training and evaluations)
    doing: str = "starting"
    total: int | None = None  # total number of steps, if the trainer reports it
    # Name of a metric, as the trainer reports it → its newest value.
    metrics: dict[str, float] = field(default_factory=dict)
    pinned: dict[str, Any] = field(default_factory=dict)
    failure: Mapping[str, Any] | None = None
    preempted: bool = False
    started: bool = False
    said_end: bool = False
    first_t: float | None = None  # time of the first event
    last_t: float | None = None  # time of the last event
    first_point: tuple[int, float] | None = None  # step and time of the first point of the curve
    last_point: tuple[int, float] | None = None  # step and time of the last point of the curve

    @property
    def lasted_s(self) -> float:
        """Seconds between the first and the last event."""
        return self.last_t - self.first_t if self.first_t is not None and self.last_t is not None else 0.0

    def speed(self, cost: float, total: int | None) -> float | None:
        """Return the speed of the training, as the cost of the completed steps per second; None while it is unknown.

        cost: predicted cost of all `total` steps.
        """
        if not (cost and total and self.first_point and self.last_point):
            return None
        steps, seconds = (late - early for late, early in zip(self.last_point, self.first_point, strict=True))
        return cost * steps / total / seconds if seconds > 0 else None

    def left_s(self, total: int | None) -> float | None:
        """Return the predicted seconds of training left; None while they are unknown.

        total: number of steps of the training; None if the job does not know it.
        """
        total = total or self.total
        if self.doing != "training" or total is None or self.first_point is None or self.last_point is None:
            return None
        steps, seconds = (late - early for late, early in zip(self.last_point, self.first_point, strict=True))
        return seconds / steps * max(0, total - self.last_point[0]) if steps > 0 else None

    def take(self, event: Mapping[str, Any]) -> None:
        """Update the progress with one event."""
        kind, step = event["kind"], event.get("step")
        self.said_end = self.said_end or kind in ENDS
        if kind == "ended":  # the coordinator writes this event
            return
        self.last_t = event["t"]
        self.first_t = self.last_t if self.first_t is None else self.first_t
        if step is not None and kind in ("resumed", "branched", "metrics", "checkpoint", "trained", "preempted"):
            self.step = step
            self.first_step = step if self.first_step is None else self.first_step
        self.started = self.started or kind == "started"
        if kind in ("started", "resumed", "branched", "metrics", "checkpoint"):
            self.doing = "starting" if kind == "started" else "training"
        if kind == "metrics":
            self.metrics |= event.get("metrics", {})
            self.last_point = (event["step"], event["t"])
            self.first_point = self.first_point or self.last_point
        if kind == "checkpoint":
            self.saved_step = max(self.saved_step, event["step"])
        elif kind in ("trained", "evaluated"):
            self.parts += 1
            self.doing = "evaluating"
        elif kind == "progress" and event["what"] == "training" and event.get("total"):
            self.doing, self.step, self.total = "training", int(event["done"]), int(event["total"])
            self.last_point = (self.step, event["t"])
            self.first_point = self.first_point or self.last_point
        elif kind == "progress":
            what, done, total = event["what"], event.get("done", 0), event.get("total")
            self.doing = f"{what} {_count(done)}/{_count(total)}" if total else what
        elif kind == "pinned":
            self.pinned |= {k: v for k, v in event.items() if k not in ("t", "kind", "format")}
        elif kind == "failed":
            self.failure = event
        elif kind == "preempted":
            self.preempted = True


def _count(number: Any) -> str:
    return f"{number:.0f}" if float(number).is_integer() else f"{number:.3g}"
