"""The cost of a row and of a table, and the attempts that count. Sums: experiments/events/accounting.py."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import Field

from experiments.events.accounting import NOTHING, Amounts, AttemptCost, amounts_of, attempt_costs, total
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


def spending(run_ids: Collection[str], store: Store) -> Spending:
    """Return the attempts at runs, and at the trials of the searches that found their settings. Raises Damaged."""
    if (kept := read_json(store.root / FILE)) is not None:  # it came along with an opened bundle
        return Spending.model_validate(kept)
    searches = list(_tunings(store, run_ids))
    every = sorted({*run_ids}.union(*searches))
    return Spending(runs={run_id: attempt_costs(store, run_id) for run_id in every}, searches=searches)


def last_change(found: Spending, run_ids: Collection[str]) -> str:
    """Return the day (UTC) on which the last attempt at these runs ended; "" if none is known."""
    times = [one.t for run_id in run_ids for one in found.runs.get(run_id, ()) if one.t]
    return datetime.fromtimestamp(max(times), UTC).date().isoformat() if times else ""


def _tunings(store: Store, run_ids: Collection[str]) -> Iterator[list[str]]:
    """The trials of each search of a store (experiments/tuning.py) that has one of the runs among them."""
    for path in sorted((store.root / "tuning").glob("*.json")):
        record = read_json(path) or {}
        trials = [trial for trial in record.get("trials", ()) if isinstance(trial, dict)]
        found = [str(trial["run_id"]) for trial in trials if trial.get("run_id")]
        if not set(found).isdisjoint(run_ids):
            yield found


# --- What rows and the table cost


@dataclass(frozen=True)
class RowSpent:
    """The cost of a row, without the runs that rows above it show too."""

    runs: Amounts = NOTHING
    tuning: Amounts = NOTHING
    counted_in: tuple[str, ...] = ()  # rows above, with which it shares runs

    @property
    def all(self) -> Amounts:
        """Its runs and its tuning."""
        return self.runs + self.tuning


@dataclass(frozen=True)
class TableSpent:
    """The cost of a table."""

    rows: Mapping[str, RowSpent]
    shared: int = 0  # runs that were started for other tables too, or for those alone

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
