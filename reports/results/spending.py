"""What lies behind a table's runs in a store: all attempts at each of them, and at the trials of their tuning.

A bundle has only the attempts that finished, so it takes along what its maker's store said of the others (FILE).
"""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from typing import Any

from pydantic import Field

from ablations.plan.planned import Plan
from experiments.events.spent import Spent, spent
from experiments.store.facts import Facts, Word
from experiments.store.layout import Store
from experiments.store.sealed import read_json

FILE = "spending.json"  # in the folder of an opened bundle


class Spending(Facts):
    """Attempts by run_id; of each tuning, the run_ids of its trials."""

    runs: dict[Word, list[Spent]] = Field(default_factory=dict)
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
    return Spending(runs={run_id: spent(store, run_id) for run_id in every}, searches=searches)


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
