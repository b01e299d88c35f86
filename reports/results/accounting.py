"""What attempts cost, added up: of a run, a row, a comparison, a table; and which attempts count."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from functools import reduce
from operator import add
from typing import Any

from pydantic import Field

from ablations.planning.planned import Plan
from experiments.events.accounting import AttemptCost, attempt_costs
from experiments.store.checksummed import read_json
from experiments.store.layout import Store
from experiments.store.results import Facts, Word

# --- All attempts at a table's runs and at the trials of their tuning, in a store
# A bundle has only the attempts that finished, so it includes what its maker's store recorded of the others (FILE).


FILE = "spending.json"  # in the folder of an opened bundle


class Spending(Facts):
    """Attempts by run_id; of each tuning, the run_ids of its trials."""

    runs: dict[Word, list[AttemptCost]] = Field(default_factory=dict)
    searches: list[list[Word]] = Field(default_factory=list)


def spending(plan: Plan, store: object) -> Spending | None:
    """Of a plan's runs; None for a store without folders. Raises Damaged."""
    if not isinstance(store, Store):
        return None
    if (already := kept(store)) is not None:
        return already
    run_ids = {run.run_id for run in plan.trainings}
    searches = [trials for _, trials in tunings(store, run_ids)]
    every = sorted(run_ids.union(*searches))
    return Spending(runs={run_id: attempt_costs(store, run_id) for run_id in every}, searches=searches)


def last_change(found: Spending, plan: Plan) -> str:
    """The day (UTC) on which the last attempt at a plan's runs ended; "" if none is known."""
    times = [one.t for run in plan.trainings for one in found.runs.get(run.run_id, ()) if one.t]
    return datetime.fromtimestamp(max(times), UTC).date().isoformat() if times else ""


def kept(store: Store) -> Spending | None:
    """What came along with an opened bundle; None for a store of its own."""
    content = read_json(store.root / FILE)
    return None if content is None else Spending.model_validate(content)


def tunings(store: Store, run_ids: Collection[str]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """The searches of a store (experiments/tuning.py) with one of the runs among their trials: record, run_ids."""
    for path in sorted((store.root / "tuning").glob("*.json")):
        record = read_json(path) or {}
        trials = [trial for trial in record.get("trials", ()) if isinstance(trial, dict)]
        found = [str(trial["run_id"]) for trial in trials if trial.get("run_id")]
        if not set(found).isdisjoint(run_ids):
            yield record, found


# --- Sums over them


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


@dataclass(frozen=True)
class RowSpent:
    """What a row cost; of the runs that rows above it show too, nothing."""

    runs: Amounts = Amounts()
    tuning: Amounts = Amounts()
    counted_in: tuple[str, ...] = ()  # rows above, with which it shares runs

    @property
    def all(self) -> Amounts:
        """Its runs and its tuning."""
        return self.runs + self.tuning


@dataclass(frozen=True)
class DecisionSpent:
    """What the runs of one comparison cost: those of the row, and those of base, which other comparisons use too."""

    base: str
    seeds: int | None  # that a rule for seeds decided by; None: all
    row_spent: Amounts
    base_spent: Amounts


@dataclass(frozen=True)
class TableSpent:
    """What a table cost."""

    rows: Mapping[str, RowSpent]
    decisions: Mapping[str, DecisionSpent] = field(default_factory=dict)  # by row
    shared: int = 0  # runs that were started for other tables too, or for those alone

    @property
    def total(self) -> Amounts:
        """Of all rows, with their tuning."""
        return total(row.all for row in self.rows.values())

    @property
    def tuning(self) -> Amounts:
        """Of all trials that are no run of the table."""
        return total(row.tuning for row in self.rows.values())


def amounts(run_id: str, found: Spending) -> Amounts:
    """Of all attempts at a run."""
    attempts = found.runs.get(run_id, ())
    return Amounts(runs=int(bool(attempts))) + amounts_of(attempts)


def amounts_of(attempts: Iterable[AttemptCost]) -> Amounts:
    """Of these attempts, whatever run they are at."""
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
    return reduce(add, parts, Amounts())
