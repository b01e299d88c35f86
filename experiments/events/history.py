"""Read the training curve of a run from the events of all its attempts, without repeated steps.

This module does not import torch.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from experiments.events.event_log import Tail
from experiments.store.layout import Store

HEAD = 20  # one of the first HEAD events is "started"


class Point(NamedTuple):
    """A point of a training curve."""

    name: str
    value: float
    t: float  # Unix seconds
    step: int


class History:
    """A reader of a run's events. Each call of `read` yields the new points of the training curve.

    If a resumed attempt repeats steps, their points are yielded only once.

    begin: number of the first attempt of the present training. A "restarted" event begins a new training with a new
    curve.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._tails: dict[int, Tail] = {}  # number of a started attempt → reader of its events
        self.begin = 0
        self.last: dict[str, int] = {}  # metric name → step of the last point that was yielded
        self.started: dict[str, Any] = {}  # "started" event of the latest attempt
        self.begun: dict[str, Any] = {}  # "started" event of the first attempt
        self.first_t: float | None = None
        self.last_t = 0.0
        self.last_step = 0
        self.trained_t: float | None = None
        self.evaluated_t: dict[str, float] = {}  # eval_id → time of the valid evaluation

    @property
    def position(self) -> dict[int, int]:
        """The number of bytes read from the events of each attempt of the present training."""
        return {number: tail.offset for number, tail in sorted(self._tails.items()) if number >= self.begin}

    def read(self) -> Iterator[Point]:
        """Yield the points since the last call. After a "restarted" event, the curve begins again."""
        return (point for points in self.batches(1) for point in points)

    def batches(self, size: int) -> Iterator[list[Point]]:
        """Yield the points since the last call in batches of at least `size`; the last batch may be smaller or empty.

        After each batch, `position` covers exactly the events of the batches that were yielded so far.
        """
        self.look()
        batch: list[Point] = []
        for number, tail in sorted(self._tails.items()):
            if number >= self.begin:
                for event in tail.read():
                    batch += self._points(event)
                    if len(batch) >= size:
                        yield batch
                        batch = []
        yield batch

    def skip(self, position: Mapping[int, int]) -> None:
        """Skip to the `position` of another History, as if all earlier events had been read."""
        self.look()
        for number, tail in sorted(self._tails.items()):
            if number >= self.begin:
                for event in tail.read(until=position.get(number, 0)):
                    for _ in self._points(event):
                        pass

    def look(self) -> int:
        """Look for new attempts, and return `begin`."""
        numbers = self._store.attempts(self._run_id)
        for number in numbers:
            folder = self._store.attempt_folder(self._run_id, number)
            first = next(Tail(folder).read(), None) if number not in self._tails else None
            if first is None:
                continue
            self._tails[number] = Tail(folder)
            if first["kind"] == "restarted" and number > self.begin:
                self.begin, self.last, self.started, self.begun, self.first_t = number, {}, {}, {}, None
                self.last_t, self.last_step, self.trained_t, self.evaluated_t = 0.0, 0, None, {}
        self.begin = self.begin or min(numbers, default=0)
        if not self.begun:
            for number in sorted(number for number in self._tails if number >= self.begin)[:1]:
                head = list(islice(Tail(self._store.attempt_folder(self._run_id, number)).read(), HEAD))
                self.first_t = head[0]["t"]
                self.begun = dict(next((event for event in head if event["kind"] == "started"), {}))
        return self.begin

    def _points(self, event: Mapping[str, Any]) -> Iterator[Point]:
        kind, t = event["kind"], event["t"]
        self.last_t = t
        if kind == "started":
            self.started = dict(event)
        elif kind == "trained":
            self.trained_t = t
        elif kind == "evaluated":
            if event.get("renews"):  # this evaluation replaces an earlier one
                self.evaluated_t[event["eval_id"]] = t
            self.evaluated_t.setdefault(event["eval_id"], t)
        elif kind == "redrawn":
            for name in event["metrics"]:
                self.last.pop(name, None)
        elif kind == "metrics":
            self.last_step = max(self.last_step, step := event["step"])
            for name, value in event["metrics"].items():
                if step > self.last.get(name, -1):
                    self.last[name] = step
                    yield Point(name, value, t, step)
