"""The columns of a table. A `Column` describes the source of its values, and how they are printed and compared.

A task lists its columns in `Task.columns`. Reports get all information about a metric from its `Column`. To add a
metric, add a `Column` and add the metric's name to `Task.metrics`. If the column has `counts`, reports also recompute
recorded scores and test differences across sentences, `ablations compare` prints confidence intervals, and a figure
shows scores by length.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.errors import UserError

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Prefixes in a study's [columns] for statistics before the first and before the last update.
MEASURED = ("start.", "end.")
EXAMPLE_FILE = "examples.jsonl"  # outputs of a user's trainer in an evaluation's folder, one JSON object per example


@dataclass(frozen=True)
class Counts:
    """A metric that is a function of sums of counts. An evaluation stores the counts of each sentence.

    names: the names of the counts. If `file` ends in .npy, they name the columns of its array, which has one row per
        sentence. Otherwise, they name fields of the file's JSON objects.
    value: the metric as a function of the sums over any selection of sentences. It maps an array of shape
        (…, len(names)) to an array of shape (…).
    length: name of the count that contains a sentence's length in words; "" if there is none. The length is used for
        sets whose source lengths are not stored.
    """

    names: tuple[str, ...]
    value: "Callable[[NDArray[Any]], NDArray[Any]]"
    file: str = EXAMPLE_FILE
    length: str = ""

    def of(self, sums: "NDArray[Any]") -> "NDArray[Any]":
        """Return `value(sums)`. Raises UserError if the function fails or returns another shape."""
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

    key: str  # name in JSON and CSV, such as "ppl"
    set: str  # the evaluated set, such as "dev"; "*" for every set except dev
    metric: str  # name of the metric in an evaluation, such as "perplexity"
    header: str  # heading in the table, such as "PPL (dev)"
    better: str  # "lower" or "higher"; "" if it is unknown
    digits: int  # number of decimals
    paper: str = ""  # key of the column among the published values of a row (`paper`)
    about: str = ""  # a sentence about the metric for the notes of the table
    logarithmic: bool = False  # whether changes are differences of natural logarithms
    per_piece: bool = False  # whether the metric is per word piece, so that it is not compared across tokenizers
    optional: bool = False  # whether the column is printed only if [table] columns or --columns names it
    counts: Counts | None = None  # counts of each example; None if the metric is not a function of counts


def named(name: str, columns: Sequence[Column]) -> Column | None:
    """Return the column that `name` identifies by its key, metric, heading or key of published values, in this order.

    Return None if the name is empty or identifies no column. Raises UserError if it identifies several columns.
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
    """Return columns of a study or a file with the rules of comparison of the task's columns (`own`) added.

    The rules are `logarithmic`, `per_piece` and `counts` of the task's column for the same metric.
    """
    by_metric = {column.metric: column for column in reversed(tuple(own))}
    return tuple(_joined(column, by_metric.get(column.metric, column)) for column in columns)


def _joined(column: Column, own: Column) -> Column:
    return replace(
        column,
        logarithmic=column.logarithmic or own.logarithmic,
        per_piece=column.per_piece or own.per_piece,
        counts=column.counts or own.counts,
    )
