"""Why rows have no number: what the last attempt of each failed run said."""

from dataclasses import dataclass

from experiments.store.layout import Store
from reports.results.results import last_failure
from reports.results.table import Table

LONGEST = 2000  # characters of a message that are shown


@dataclass(frozen=True)
class Failure:
    """The error that the last attempt of a run ended with."""

    row: str
    seed: int
    run_id: str
    attempt: int
    kind: str  # a FailureClass, or a word of another version
    message: str


def failures(table: Table, store: Store) -> list[Failure]:
    """One for each run of the table that has failed and was not trained since."""
    found = []
    for row in table.rows:
        for outcome in row.outcomes:
            if outcome.run.state == "failed":
                found.append(_last(store, row.key, outcome.run.seed, outcome.run.run_id))
    return found


def _last(store: Store, row: str, seed: int, run_id: str) -> Failure:
    if ended := last_failure(store, run_id):
        return Failure(row, seed, run_id, ended.attempt, ended.kind, ended.message[:LONGEST])
    return Failure(
        row, seed, run_id, 0, "", "The process ended without an error message; `ablations status` shows its log."
    )
