"""A run's story over its attempts, read from the events: one curve, whatever died in between. Imports no torch."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from experiments.events.event_log import Tail
from experiments.store.layout import Store

HEAD = 20  # events, of which one is "started"


class Point(NamedTuple):
    """A number of the training curve."""

    name: str
    value: float
    t: float  # Unix seconds
    step: int


class History:
    """Reads what is new at each call. A step that a resumed attempt repeats is given once.

    `begin` is the first attempt of the present line of work: a "restarted" event starts a new line, whose numbers have
    nothing to do with the former one's.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store, self._run_id = store, run_id
        self._tails: dict[int, Tail] = {}  # of the attempts that have begun
        self.begin = 0
        self.last: dict[str, int] = {}  # the last step given, by name
        self.started: dict[str, Any] = {}  # the latest attempt's "started" event
        self.begun: dict[str, Any] = {}  # the first attempt's "started" event
        self.first_t: float | None = None
        self.last_t = 0.0
        self.last_step = 0
        self.trained_t: float | None = None
        self.evaluated_t: dict[str, float] = {}  # by eval_id, when it was first evaluated

    @property
    def position(self) -> dict[int, int]:
        """How far it has read: bytes of each attempt's events."""
        return {number: tail.offset for number, tail in sorted(self._tails.items()) if number >= self.begin}

    def read(self) -> Iterator[Point]:
        """The points since the last call; after `restarted` they begin anew."""
        return (point for points in self.batches(1) for point in points)

    def batches(self, size: int) -> Iterator[list[Point]]:
        """As `read`, at least so many at a time, the last one may be empty; `position` counts what has been given."""
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
        """Go to where another History's `position` was, as if all before it had been read."""
        self.look()
        for number, tail in sorted(self._tails.items()):
            if number >= self.begin:
                for event in tail.read(until=position.get(number, 0)):
                    for _ in self._points(event):
                        pass

    def look(self) -> int:
        """Take notice of new attempts; returns `begin`."""
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
            self.evaluated_t.setdefault(event["eval_id"], t)
        elif kind == "metrics":
            self.last_step = max(self.last_step, step := event["step"])
            for name, value in event["metrics"].items():
                if step > self.last.get(name, -1):
                    self.last[name] = step
                    yield Point(name, value, t, step)
