"""Costs of rows and tables, as sums over attempts. experiments/events/accounting.py reads the cost of an attempt."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field

from experiments.events.accounting import NOTHING, Amounts, AttemptCost, amounts_of, attempt_costs, total
from experiments.store.checksummed import read_json
from experiments.store.layout import Store
from experiments.store.record_base import Facts, Word

# A bundle contains only finished attempts. In an opened bundle, the file FILE therefore lists the costs of all attempts
# in the original store.


FILE = "spending.json"  # file in the folder of an opened bundle


class Spending(Facts):
    """The costs of all attempts, by run_id, and the run_ids of the trials of each search."""

    runs: dict[Word, list[AttemptCost]] = Field(default_factory=dict)
    searches: list[list[Word]] = Field(default_factory=list)


def spending(run_ids: Collection[str], store: Store) -> Spending:
    """Return the costs of all attempts at these runs, and at the trials of their tuning.

    Raises Damaged if a file of the costs or of the tuning is damaged.
    """
    if (kept := read_json(store.root / FILE)) is not None:  # the store is an opened bundle
        return Spending.model_validate(kept)
    searches = list(_tunings(store, run_ids))
    every = sorted({*run_ids}.union(*searches))
    return Spending(runs={run_id: attempt_costs(store, run_id) for run_id in every}, searches=searches)


def last_change(found: Spending, run_ids: Collection[str]) -> str:
    """Return the day (UTC) on which the last attempt at these runs ended; "" if no end is known."""
    times = [one.t for run_id in run_ids for one in found.runs.get(run_id, ()) if one.t]
    return datetime.fromtimestamp(max(times), UTC).date().isoformat() if times else ""


def _tunings(store: Store, run_ids: Collection[str]) -> Iterator[list[str]]:
    """Yield the run_ids of the trials of each search (experiments/tuning.py) that has one of the runs as a trial."""
    for path in sorted((store.root / "tuning").glob("*.json")):
        record = read_json(path) or {}
        trials = [trial for trial in record.get("trials", ()) if isinstance(trial, dict)]
        found = [str(trial["run_id"]) for trial in trials if trial.get("run_id")]
        if not set(found).isdisjoint(run_ids):
            yield found


@dataclass(frozen=True)
class RowSpent:
    """The cost of a row, without runs that are counted in rows above it."""

    runs: Amounts = NOTHING
    tuning: Amounts = NOTHING
    counted_in: tuple[str, ...] = ()  # rows above that share runs with this row

    @property
    def all(self) -> Amounts:
        """The cost of the row's runs and of its tuning."""
        return self.runs + self.tuning


@dataclass(frozen=True)
class TableSpent:
    """The cost of a table."""

    rows: Mapping[str, RowSpent]
    shared: int = 0  # number of the table's runs that were also, or only, started for other tables

    @property
    def total(self) -> Amounts:
        """The cost of all rows, with their tuning."""
        return total(row.all for row in self.rows.values())

    @property
    def tuning(self) -> Amounts:
        """The cost of all tuning trials that are not runs of the table."""
        return total(row.tuning for row in self.rows.values())


def amounts(run_id: str, found: Spending) -> Amounts:
    """Return the cost of all attempts at a run."""
    attempts = found.runs.get(run_id, ())
    return Amounts(runs=int(bool(attempts))) + amounts_of(attempts)
