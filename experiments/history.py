"""A run's story over its attempts, read from the events: one curve, whatever died in between. Imports no torch."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from experiments.events import Tail
from experiments.store import Store


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
        self._tails: dict[int, Tail] = {}
        self.begin = 0
        self.last: dict[str, int] = {}  # the last step given, by name
        self.started: dict[str, Any] = {}  # the latest attempt's "started" event
        self.first_t: float | None = None

    def read(self) -> list[Point]:
        """The points since the last call; after `restarted` they begin anew."""
        return [point for event in self._events() for point in self._points(event)]

    def _events(self) -> Iterator[dict[str, Any]]:
        fresh: dict[int, list[dict[str, Any]]] = {}
        for number in self._store.attempts(self._run_id):
            tail = self._tails.setdefault(number, Tail(self._store.attempt_folder(self._run_id, number)))
            fresh[number] = tail.read()
        for number, events in fresh.items():
            if number > self.begin and any(event["kind"] == "restarted" for event in events):
                self.begin, self.last, self.first_t = number, {}, None
        self.begin = self.begin or min(fresh, default=0)
        for number, events in fresh.items():
            if number >= self.begin:
                yield from events

    def _points(self, event: dict[str, Any]) -> Iterator[Point]:
        if self.first_t is None:
            self.first_t = float(event["t"])
        if event["kind"] == "started":
            self.started = event
        step = event.get("step")
        if event["kind"] != "metrics" or not isinstance(step, int):
            return
        for name, value in event.items():
            if name in ("t", "kind", "step") or step <= self.last.get(name, -1):
                continue
            number = _number(value)
            if number is not None:
                self.last[name] = step
                yield Point(name, number, float(event["t"]), step)


def _number(value: Any) -> float | None:
    """A metric's value; events write NaN and infinity as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if not isinstance(value, str) or not math.isfinite(number) else None
