"""How the last attempt of a failed run ended, from the events that it left."""

from pathlib import Path
from typing import NamedTuple, Protocol, runtime_checkable

from experiments.events.event_log import Tail


@runtime_checkable
class Attempts(Protocol):
    """What is read of a store with folders (experiments/store/layout.py)."""

    def attempts(self, run_id: str) -> list[int]: ...
    def attempt_folder(self, run_id: str, attempt: int) -> Path: ...


class Ended(NamedTuple):
    """The error that an attempt ended with."""

    attempt: int
    kind: str  # a FailureClass, or a word of another version
    message: str


def last_failure(store: object, run_id: str) -> Ended | None:
    """The error of the run's last attempt that left one; None if none did, as for a process that was killed."""
    if not isinstance(store, Attempts):
        return None
    for attempt in reversed(store.attempts(run_id)):
        failed = None
        for event in Tail(store.attempt_folder(run_id, attempt)).read():
            failed = event if event["kind"] == "failed" else failed
        if failed is not None:
            return Ended(attempt, failed["cls"], failed["message"])
    return None
