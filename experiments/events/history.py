"""A run's history over its attempts, read from events: one curve without gaps or repeats. Imports no torch."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from experiments.events.event_log import Tail
from experiments.store.layout import Store

HEAD = 20  # one of the first HEAD events is "started"


class Point(NamedTuple):
    """A value of the training curve."""

    name: str
    value: float
    t: float  # Unix seconds
    step: int


class History:
    """Reads a run's new events at each call. A step that a resumed attempt repeats is given once.

    begin: the first attempt of the present training. A "restarted" event begins a new training, whose curve is
    unrelated to the former one.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._tails: dict[int, Tail] = {}  # by attempt number, for started attempts
        self.begin = 0
        self.last: dict[str, int] = {}  # the last step given, by metric name
        self.started: dict[str, Any] = {}  # the latest attempt's "started" event
        self.begun: dict[str, Any] = {}  # the first attempt's "started" event
        self.first_t: float | None = None
        self.last_t = 0.0
        self.last_step = 0
        self.trained_t: float | None = None
        self.evaluated_t: dict[str, float] = {}  # by eval_id, when the evaluation that counts was made

    @property
    def position(self) -> dict[int, int]:
        """Bytes read of each attempt's events."""
        return {number: tail.offset for number, tail in sorted(self._tails.items()) if number >= self.begin}

    def read(self) -> Iterator[Point]:
        """The points since the last call; after a "restarted" event they begin again."""
        return (point for points in self.batches(1) for point in points)

    def batches(self, size: int) -> Iterator[list[Point]]:
        """Like `read`, in batches of at least `size`; the last may be empty. `position` covers batches given so far."""
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
        """Skip to a `position` of another History, as if everything before it had been read."""
        self.look()
        for number, tail in sorted(self._tails.items()):
            if number >= self.begin:
                for event in tail.read(until=position.get(number, 0)):
                    for _ in self._points(event):
                        pass

    def look(self) -> int:
        """Look for new attempts; returns `begin`."""
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
            if event.get("renews"):  # takes the place of the former one
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
