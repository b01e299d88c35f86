"""Training time of a run over all its attempts, computed from their events. Imports no torch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.events.event_log import NOT_FSYNCED, Tail
from experiments.store.layout import Store
from experiments.store.sealed import read_json
from experiments.store.spec import FILE


def training_time(store: Store, run_id: str, attempt: int, seconds: float) -> dict[str, Any]:
    """Fields for the record of attempt `attempt`, which itself took `seconds`.

    train_s            seconds of all attempts together, including failed and repeated work
    earlier_attempts   of each: attempt, seconds until its last event, how it ended ("killed" if it did not say)
    continues          {run_id, step}: the shorter run whose checkpoint this run began with; usually None
    """
    earlier: list[dict[str, Any]] = []
    resumed: dict[str, Any] | None = None
    for number, events in _line_of_work(store, run_id, attempt):
        resumed = resumed or next((dict(event) for event in events if event["kind"] == "resumed"), None)
        if number < attempt and events:
            earlier.append({"attempt": number, "seconds": _seconds(events), "ended": _ended(events)})
    total = seconds + sum(item["seconds"] for item in earlier)
    other = resumed is not None and resumed.get("run") not in (None, run_id)
    begun = {"run_id": resumed["run"], "step": resumed["step"]} if resumed and other else None
    return {"train_s": round(total, 3), "earlier_attempts": earlier, "continues": begun}


def _line_of_work(store: Store, run_id: str, last: int) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """The attempts that contribute to this result: from the last restart on."""
    found: list[tuple[int, list[dict[str, Any]]]] = []
    for number in store.attempts(run_id):
        folder = store.attempt_folder(run_id, number)
        if number > last or not _trains(folder):
            continue
        events = _without_curve(folder)
        if any(event["kind"] == "restarted" for event in events):
            found = []
        found.append((number, events))
    yield from found


def _trains(folder: Path) -> bool:
    """Whether the attempt trained; others only evaluate. An unreadable spec counts as training."""
    try:
        spec: Any = read_json(folder / FILE)
    except UserError:
        return True
    return bool(spec.get("train")) if isinstance(spec, dict) else spec is not None


def _without_curve(folder: Path) -> list[dict[str, Any]]:
    """The attempt's events; of consecutive curve points only the last, since there may be a million."""
    kept: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    for event in Tail(folder).read():
        if kept and event["kind"] in NOT_FSYNCED:
            last = [event]
        else:
            kept.append(event)
            last = []
    return kept + last


def _seconds(events: list[dict[str, Any]]) -> float:
    until = next((event for event in events if event["kind"] == "trained"), events[-1])
    return round(max(0.0, float(until["t"]) - float(events[0]["t"])), 3)


def _ended(events: list[dict[str, Any]]) -> str:
    """The class of the failure, "stopped" on request, or "killed"."""
    last = events[-1]  # "ended" of a killed one
    if last["kind"] == "failed":
        return str(last.get("cls", "failed"))
    return "stopped" if last["kind"] == "preempted" else "killed"
