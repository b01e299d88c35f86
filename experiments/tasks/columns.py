"""The columns of a table: one object per metric says where its numbers come from, how they print and are compared.

A task lists its columns (`Task.columns`); reports know nothing else of a metric, so a new metric is one more `Column`,
and its name in `Task.metrics`. With `counts`, recorded scores are also recomputed, differences between sentences are
tested, `ablations compare` gives intervals, and a figure shows scores by length.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

MEASURED = ("start.", "end.")  # in a study's [columns], before names of what runs measure at first and last update
EXAMPLE_FILE = "examples.jsonl"  # in an evaluation's folder: outputs of a user's trainer, one JSON object per example


@dataclass(frozen=True)
class Counts:
    """Counts of each sentence that an evaluation stores, and the metric as a function of their sums.

    names: columns of an array (`file` ends in .npy, one row per sentence), or fields of EXAMPLE_FILE.
    value: maps sums (… × len(names)) to values (…), for the whole set and for any selection of its sentences.
    """

    names: tuple[str, ...]
    value: "Callable[[NDArray[Any]], NDArray[Any]]"
    file: str = EXAMPLE_FILE
    length: str = ""  # which of `names` is the sentence's length in words, where the source's is not kept; "": none

    def of(self, sums: "NDArray[Any]") -> "NDArray[Any]":
        """`value` of sums (… × len(names)) → (…). Raises UserError if the function fails or returns another shape."""
        import numpy as np

        try:
            with np.errstate(divide="ignore", invalid="ignore"):
                values = np.asarray(self.value(sums), dtype=np.float64)
        except Exception as error:
            raise self._refused(f"raised {type(error).__name__}: {error}") from error
        if values.shape != sums.shape[:-1]:
            raise self._refused(f"returned an array of shape {values.shape} for sums of shape {sums.shape}")
        return values

    def _refused(self, what: str) -> UserError:
        return UserError(
            f"The function of the counts {', '.join(self.names)} {what}. It takes sums along the last axis, for any "
            "number of axes before it: for instance lambda sums: 100 * sums[..., 0] / sums[..., 1]."
        )


@dataclass(frozen=True)
class Column:
    """One column of a table: a metric of one evaluated set."""

    key: str  # the name in JSON and CSV: "ppl"
    set: str  # the evaluated set: "dev"; "*" for every set but dev
    metric: str  # the metric's name in an evaluation: "perplexity"
    header: str  # the paper's head: "PPL (dev)"
    better: str  # "lower", "higher", or "" where that is not known
    digits: int  # after the decimal point
    paper: str = ""  # the key in a variation's `paper` values
    about: str = ""  # a sentence on how the metric is measured, for the table's notes
    logarithmic: bool = False  # changes are differences of natural logarithms: scales of other vocabularies cancel
    per_piece: bool = False  # the unit is the tokenizer's piece: values of other tokenizers are not compared
    optional: bool = False  # printed only if [table] columns or --columns name it; a claim may use it
    counts: Counts | None = None  # None: between sentences only shares per example are tested (docs/own-task.md)


def named(name: str, columns: Sequence[Column]) -> Column | None:
    """The column of that name: its key, else its metric, head or name in published results, where no other has it.

    Raises UserError for a name that several columns have. The empty name is none.
    """
    if not name:
        return None
    for part in ("key", "metric", "header", "paper"):
        found = [column for column in columns if getattr(column, part) == name]
        if len(found) > 1:
            raise UserError(f"{name} may be {' or '.join(column.key for column in found)}: write one of them.")
        if found:
            return found[0]
    return None


def known_to(columns: Iterable[Column], own: Iterable[Column]) -> tuple[Column, ...]:
    """`columns` of a study or a file, completed by how the task's `own` columns compare the same metrics."""
    by_metric = {column.metric: column for column in reversed(tuple(own))}
    return tuple(_joined(column, by_metric.get(column.metric, column)) for column in columns)


def _joined(column: Column, own: Column) -> Column:
    return replace(
        column,
        logarithmic=column.logarithmic or own.logarithmic,
        per_piece=column.per_piece or own.per_piece,
        counts=column.counts or own.counts,
    )
