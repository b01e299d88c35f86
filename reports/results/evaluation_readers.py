"""Readers of the files of evaluations: counts per sentence, and lengths of source sentences."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.errors import Damaged
from experiments.store.layout import Store
from experiments.tasks.columns import Column
from reports.results.evaluation_counts import read_array, read_counts
from reports.results.run_outcomes import Outcome

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Function that returns the counts of a column in an outcome's evaluation (sentences × names); None if there are none.
CountsOf = Callable[[Outcome, Column], "NDArray[Any] | None"]
# Function that returns the number of words of each source sentence of a set; None if the outcome has not stored them.
LengthsOf = Callable[[Outcome, str], "NDArray[Any] | None"]


def counts_in(store: Store) -> CountsOf:
    """Return a function that reads the counts in a store's evaluations. `collect` has checked the files before."""

    def read(outcome: Outcome, column: Column) -> "NDArray[Any] | None":
        folder = folder_of(store, outcome, column.set)
        if folder is None or column.counts is None:
            return None
        with contextlib.suppress(Damaged):
            return read_counts(folder, column.counts)
        return None

    return read


def lengths_in(store: Store) -> LengthsOf:
    """Return a function that reads the lengths of source sentences in a store's evaluations."""

    def read(outcome: Outcome, set_: str) -> "NDArray[Any] | None":
        folder = folder_of(store, outcome, set_)
        with contextlib.suppress(Damaged):
            return None if folder is None else read_array(folder / "source_lengths.npy")
        return None

    return read


def folder_of(store: Store, outcome: Outcome, set_: str) -> Path | None:
    """Return the folder of a finished evaluation; None if the evaluation has no record."""
    scored = outcome.scored.get(set_)
    return store.evaluation_folder(outcome.run.run_id, scored.spec.eval_id) if scored and scored.record else None
