"""Costs of attempts, from their first and last events; their sums, and the training time of a run.

Attempts that failed, were stopped or killed, or were repeated are among them. An amount that was not recorded is None.
Imports no torch.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any

from pydantic import Field

from experiments.errors import Damaged, UserError
from experiments.events.event_log import ENDS, Tail, last_event
from experiments.events.heartbeat import last_heartbeat
from experiments.store.checksummed import read_json
from experiments.store.layout import Store
from experiments.store.results import Amount, Attempt, Facts, TrainingResult, Word
from experiments.store.spec import FILE as SPEC

HEAD = 20  # one of the first events is "started"


class AttemptCost(Facts):
    """An attempt. Seconds, joules."""

    attempt: Attempt = 0
    wall_s: Amount = 0.0  # from the start of its process to its end
    seen: bool = False  # whether its start and end are known; if not, wall_s is between its first and last sign of life
    ended: Word = ""  # "finished", the class of its failure, "stopped", "killed"; "": running, or its end is not known
    t: Amount | None = None  # Unix time of its end
    kind: Word | None = None  # of its devices: "cpu", "cuda"
    device_s: Amount | None = None  # wall_s × threads of processors, or × GPUs × their share
    cpu_s: Amount | None = None
    cpu_joules: Amount | None = None
    gpu_joules: Amount | None = None
    tables: list[Word] = Field(default_factory=list)  # studies and profiles that it was started for


def attempt_costs(store: Store, run_id: str) -> list[AttemptCost]:
    """The attempts at a run that have begun, oldest first."""
    folders = {number: store.attempt_folder(run_id, number) for number in store.attempts(run_id)}
    every = {number: _spent(number, folder) for number, folder in folders.items()}
    silent = [number for number, one in every.items() if one is None and (folders[number] / SPEC).exists()]
    record = _record(store, run_id) if silent else TrainingResult()
    if record.attempt in silent:  # its events are lost
        every[record.attempt] = AttemptCost(attempt=record.attempt, wall_s=record.wall_s or 0.0, ended="finished")
    found = [one for one in every.values() if one is not None]
    # after one whose end nobody saw, the next one shows that it had ended
    lost = {"ended": "killed"}
    found = [one if one.ended or one is found[-1] else one.model_copy(update=lost) for one in found]
    if all((folder / SPEC).exists() for folder in folders.values()):
        return found  # nothing was imported: no record to read
    return [*_elsewhere(store, run_id, folders), *found]


def _spent(number: int, folder: Path) -> AttemptCost | None:
    head = list(islice(Tail(folder).read(), HEAD))
    first = next((event for event in head if event["kind"] == "started"), head[0] if head else None)
    last = last_event(folder)
    if first is None or last is None:
        return None
    used = last_event(folder, "cpu_s") or {} if last["kind"] == "ended" else last
    end = _until(last, folder)
    wall_s = round(max(0.0, end - first["t"]) + first.get("after_s", 0.0), 3)
    return AttemptCost(
        attempt=number,
        wall_s=wall_s,
        seen=first["kind"] == "started" and last["kind"] in ENDS,
        ended=_ended(last),
        t=end,
        **_leased(first.get("device"), wall_s),
        cpu_s=used.get("cpu_s"),
        cpu_joules=used.get("cpu_joules"),
        gpu_joules=used.get("gpu_joules"),
        tables=[" ".join(filter(None, member[:2])) for member in first.get("members", ())],
    )


def _until(last: Mapping[str, Any], folder: Path) -> float:
    """When an attempt ended; where nobody recorded it, its last sign of life."""
    seconds: float = last["t"]
    return seconds if last["kind"] in ENDS else max(seconds, last_heartbeat(folder))


def _ended(last: dict[str, Any]) -> str:
    how = {"finished": "finished", "preempted": "stopped", "ended": "killed", "failed": last.get("cls", "failed")}
    return str(how.get(last["kind"], ""))


def _leased(device: Any, wall_s: float) -> dict[str, Any]:
    """Kind and device_s; {} where the attempt did not say what it leased."""
    if not isinstance(device, dict) or not isinstance(kind := device.get("kind"), str):
        return {}
    each = device.get("threads", 1) if kind == "cpu" else device.get("share", 1.0)
    count = device.get("count", 1)
    if not all(isinstance(number, int | float) and 0 < number < 1e6 for number in (each, count)):
        return {}
    return {"kind": kind, "device_s": round(wall_s * each * count, 3)}


def _elsewhere(store: Store, run_id: str, numbers: Collection[int]) -> list[AttemptCost]:
    """Attempts that only the record names, since they were made in the store that the run was imported from."""
    record = _record(store, run_id)
    return [
        AttemptCost(attempt=earlier.attempt, wall_s=earlier.seconds, seen=True, ended=earlier.ended or "killed")
        for earlier in record.earlier_attempts
        if earlier.attempt >= record.attempt or earlier.attempt not in numbers
    ]


def _record(store: Store, run_id: str) -> TrainingResult:
    """An empty one in place of a damaged one, which the table names."""
    try:
        return store.result(run_id) or TrainingResult()
    except Damaged:
        return TrainingResult()


# --- Sums over attempts: the only ones; tables and MLflow show these


HOUR, KWH = 3600.0, 3.6e6


@dataclass(frozen=True)
class Amounts:
    """Sums over attempts. What some attempts did not record is counted by `without_…`: the sum is of the others."""

    runs: int = 0
    attempts: int = 0
    early: int = 0  # that failed, were stopped or killed
    unseen: int = 0  # that run, or whose start or end is not known: counted between their known events
    wall_s: float = 0.0
    thread_s: float = 0.0  # leased: wall time × threads, of attempts on processors
    gpu_s: float = 0.0  # leased: wall time × GPUs × their share
    without_lease: int = 0
    cpu_s: float = 0.0
    without_cpu: int = 0
    cpu_joules: float = 0.0
    without_cpu_joules: int = 0
    gpu_joules: float = 0.0
    without_gpu_joules: int = 0  # of the attempts on GPUs
    on_gpus: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_json(self) -> dict[str, Any]:
        """Hours and kWh; None where no attempt recorded the amount, `without` where some did not."""
        without = {"device": self.without_lease, "cpu": self.without_cpu, "cpu_energy": self.without_cpu_joules}
        without["gpu_energy"] = self.without_gpu_joules
        return {
            "runs": self.runs,
            "attempts": self.attempts,
            "ended_early": self.early,
            "end_unknown": self.unseen,
            "wall_hours": self.wall_s / HOUR,
            "thread_hours": self.thread_s / HOUR,
            "gpu_hours": self.gpu_s / HOUR,
            "cpu_hours": self.cpu_s / HOUR if self.without_cpu < self.attempts else None,
            "cpu_kwh": self.cpu_joules / KWH if self.without_cpu_joules < self.attempts else None,
            "gpu_kwh": self.gpu_joules / KWH if self.without_gpu_joules < self.on_gpus else None,
            "attempts_without": {name: count for name, count in without.items() if count},
        }

    def known(self) -> dict[str, float]:
        """The numbers of `as_json` but those that are 0 or that no attempt recorded."""
        return {name: float(value) for name, value in self.as_json().items() if value and not isinstance(value, dict)}


NOTHING = Amounts()


def amounts_of(attempts: Iterable[AttemptCost]) -> Amounts:
    """Return the sum of the attempts' costs, also of several runs."""
    return total(map(_of_attempt, attempts))


def _of_attempt(one: AttemptCost) -> Amounts:
    gpu = one.kind == "cuda"
    leased = one.device_s or 0.0
    return Amounts(
        attempts=1,
        early=one.ended not in ("finished", ""),
        unseen=not one.seen,
        wall_s=one.wall_s,
        thread_s=0.0 if gpu else leased,
        gpu_s=leased if gpu else 0.0,
        without_lease=one.device_s is None,
        cpu_s=one.cpu_s or 0.0,
        without_cpu=one.cpu_s is None,
        cpu_joules=one.cpu_joules or 0.0,
        without_cpu_joules=one.cpu_joules is None,
        gpu_joules=one.gpu_joules or 0.0,
        without_gpu_joules=gpu and one.gpu_joules is None,
        on_gpus=gpu,
    )


def total(parts: Iterable[Amounts]) -> Amounts:
    """The sum."""
    return reduce(add, parts, NOTHING)


# --- Training time of a run over all its attempts


def training_time(store: Store, run_id: str, attempt: int, seconds: float) -> dict[str, Any]:
    """Fields for the record of attempt `attempt`, which itself took `seconds`.

    train_s            seconds of all attempts together, including failed and repeated work
    earlier_attempts   of each: attempt, seconds until its last event, how it ended ("killed" if it did not say)
    continues          {run_id, step}: the shorter run whose checkpoint this run began with; usually None
    """
    earlier: list[dict[str, Any]] = []
    resumed: Mapping[str, Any] = {}
    for number in store.attempts(run_id):
        folder = store.attempt_folder(run_id, number)
        if number > attempt or not _trains(folder):
            continue
        begin = until = last = None
        for last in Tail(folder).read():
            begin = last["t"] if begin is None else begin
            if last["kind"] == "restarted":  # what lies before does not contribute
                earlier, resumed = [], {}
            elif last["kind"] == "resumed":
                resumed = resumed or last
            elif last["kind"] == "trained":
                until = until or last["t"]
        if number < attempt and last is not None:
            seconds_there = round(max(0.0, (until or _until(last, folder)) - (begin or 0.0)), 3)
            earlier.append({"attempt": number, "seconds": seconds_there, "ended": _ended(last) or "killed"})
    begun = None
    if resumed.get("run") not in (None, run_id):
        begun = {"run_id": resumed["run"], "step": resumed["step"]}
    train_s = round(seconds + sum(item["seconds"] for item in earlier), 3)
    return {"train_s": train_s, "earlier_attempts": earlier, "continues": begun}


def _trains(folder: Path) -> bool:
    """Return whether the attempt trained; others only evaluate. An unreadable spec counts as training."""
    try:
        spec: Any = read_json(folder / SPEC)
    except UserError:
        return True
    return bool(spec.get("train")) if isinstance(spec, dict) else spec is not None
