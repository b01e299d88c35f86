"""Compute the costs of attempts from their first and last events, sums of costs, and the training time of a run.

All attempts count, including those that failed, were stopped or killed, or were repeated. An amount that was not
recorded is None.

This module does not import torch.
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
from experiments.store.record_base import Amount, Attempt, Facts, Word
from experiments.store.results import TrainingResult
from experiments.store.spec import FILE as SPEC

HEAD = 20  # one of the first 20 events is "started"


class AttemptCost(Facts):
    """The cost of an attempt, in seconds and joules."""

    attempt: Attempt = 0
    wall_s: Amount = 0.0  # from the start of the process to its end
    seen: bool = False  # whether start and end are known; if not, wall_s ends at the last event or heartbeat
    ended: Word = ""  # "finished", a failure class, "stopped" or "killed"; "" while it runs, or if its end is not known
    t: Amount | None = None  # Unix time of the end of the attempt
    kind: Word | None = None  # kind of the attempt's devices: "cpu" or "cuda"
    device_s: Amount | None = None  # wall_s × CPU threads, or wall_s × GPUs × share of a GPU
    cpu_s: Amount | None = None
    cpu_joules: Amount | None = None
    gpu_joules: Amount | None = None
    tables: list[Word] = Field(default_factory=list)  # studies and profiles for which the attempt was started


def attempt_costs(store: Store, run_id: str) -> list[AttemptCost]:
    """Return the costs of the attempts at a run that have begun, oldest first."""
    folders = {number: store.attempt_folder(run_id, number) for number in store.attempts(run_id)}
    every = {number: _spent(number, folder) for number, folder in folders.items()}
    silent = [number for number, one in every.items() if one is None and (folders[number] / SPEC).exists()]
    record = _record(store, run_id) if silent else TrainingResult()
    if record.attempt in silent:  # the events of the finished attempt are lost
        every[record.attempt] = AttemptCost(attempt=record.attempt, wall_s=record.wall_s or 0.0, ended="finished")
    found = [one for one in every.values() if one is not None]
    # An attempt without a recorded end was killed if another attempt follows it.
    lost = {"ended": "killed"}
    found = [one if one.ended or one is found[-1] else one.model_copy(update=lost) for one in found]
    if all((folder / SPEC).exists() for folder in folders.values()):
        return found  # the run was not imported, so its record names no further attempts
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
    """Return the time when an attempt ended; the time of its last event or heartbeat if its end was not recorded."""
    seconds: float = last["t"]
    return seconds if last["kind"] in ENDS else max(seconds, last_heartbeat(folder))


def _ended(last: dict[str, Any]) -> str:
    how = {"finished": "finished", "preempted": "stopped", "ended": "killed", "failed": last.get("cls", "failed")}
    return str(how.get(last["kind"], ""))


def _leased(device: Any, wall_s: float) -> dict[str, Any]:
    """Return `kind` and `device_s` of a leased device, or {} if the lease was not recorded."""
    if not isinstance(device, dict) or not isinstance(kind := device.get("kind"), str):
        return {}
    each = device.get("threads", 1) if kind == "cpu" else device.get("share", 1.0)
    count = device.get("count", 1)
    if not all(isinstance(number, int | float) and 0 < number < 1e6 for number in (each, count)):
        return {}
    return {"kind": kind, "device_s": round(wall_s * each * count, 3)}


def _elsewhere(store: Store, run_id: str, numbers: Collection[int]) -> list[AttemptCost]:
    """Return attempts that only the record contains, because the run was imported from the store that made them."""
    record = _record(store, run_id)
    return [
        AttemptCost(attempt=earlier.attempt, wall_s=earlier.seconds, seen=True, ended=earlier.ended or "killed")
        for earlier in record.earlier_attempts
        if earlier.attempt >= record.attempt or earlier.attempt not in numbers
    ]


def _record(store: Store, run_id: str) -> TrainingResult:
    """Return the record of a run, or an empty one if it is missing or damaged. The table names damaged records."""
    try:
        return store.result(run_id) or TrainingResult()
    except Damaged:
        return TrainingResult()


HOUR, KWH = 3600.0, 3.6e6


@dataclass(frozen=True)
class Amounts:
    """Sums over attempts. The fields `without_…` count the attempts that did not record an amount."""

    runs: int = 0
    attempts: int = 0
    early: int = 0  # attempts that failed, were stopped or were killed
    unseen: int = 0  # attempts that are running, or whose start or end is not known
    wall_s: float = 0.0
    thread_s: float = 0.0  # wall time × leased threads, for attempts on CPUs
    gpu_s: float = 0.0  # wall time × leased GPUs × share of a GPU
    without_lease: int = 0
    cpu_s: float = 0.0
    without_cpu: int = 0
    cpu_joules: float = 0.0
    without_cpu_joules: int = 0
    gpu_joules: float = 0.0
    without_gpu_joules: int = 0  # counts only attempts on GPUs
    on_gpus: int = 0

    def __add__(self, other: "Amounts") -> "Amounts":
        return Amounts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    def as_json(self) -> dict[str, Any]:
        """Return the sums in hours and kWh, for JSON.

        CPU time and energies are None if no attempt recorded them. `attempts_without` counts attempts without a record.
        """
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
        """Return the numbers of `as_json`, without zeros and amounts that no attempt recorded."""
        return {name: float(value) for name, value in self.as_json().items() if value and not isinstance(value, dict)}


NOTHING = Amounts()


def amounts_of(attempts: Iterable[AttemptCost]) -> Amounts:
    """Return the sum of the costs of attempts, which may belong to several runs."""
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
    """Return the sum of several sums."""
    return reduce(add, parts, NOTHING)


def training_time(store: Store, run_id: str, attempt: int, seconds: float) -> dict[str, Any]:
    """Return fields for the record of attempt number `attempt`, which took `seconds`.

    train_s            seconds of all attempts, including failed and repeated work
    earlier_attempts   for each earlier attempt: number, seconds of training, how it ended ("killed" if not recorded)
    continues          {run_id, step} if this run began with the checkpoint of a shorter run, else None
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
            if last["kind"] == "restarted":  # earlier attempts do not contribute to this training
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
    """Return whether an attempt trains, instead of only evaluating. An unreadable spec counts as training."""
    try:
        spec: Any = read_json(folder / SPEC)
    except UserError:
        return True
    return bool(spec.get("train")) if isinstance(spec, dict) else spec is not None
