"""The table as data: for each row and metric, the values over seeds, the change from base and the paper's value.

Only titles and notes are text to print, and `reports/render` does the layout. A measure with a missing seed has no
mean.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from experiments.tasks.columns import Column
from experiments.tasks.own.code_files import EDITED
from reports.results.accounting import TableSpent
from reports.results.dunnett import ALPHA
from reports.results.run_outcomes import NOT_RECORDED, Outcome
from reports.spec.choices import Choices
from reports.spec.table_spec import Note, RowSpec, TableSpec

BRANCH = "‡"  # marks rows that share steps with another row
IMPORTED = "§"  # marks rows that were trained elsewhere
NOT_REPORTED = "not reported"  # reason: the user's trainer finished without reporting the metric
NOT_IMPORTED = "not imported"  # reason: the run was imported without a value of the metric
NOT_MEASURED = "not measured"  # reason: the evaluation was made before the program had the metric
# The state of a row is the first state in this list that a seed of the row has.
ATTENTION = ("damaged", "failed", "interrupted", "running", "waiting", "missing", "stale", "finished")


@dataclass(frozen=True)
class Test:
    """The test of a row's change from base in one column (reports/results/significance.py)."""

    p: float  # two-sided p-value, corrected for the column's rows
    # The ends of the 95 % interval of the change. In a test between seeds, the intervals of all rows hold together with
    # 95 % probability. In a test between sentences, each interval holds alone.
    low: float
    high: float
    paired: tuple[float, float] | None  # uncorrected 95 % interval of the paired differences (tests between seeds only)
    by: str = ""  # name of the test, for the reader

    @property
    def marked(self) -> bool:
        """True if the change gets a star."""
        return self.p < ALPHA


@dataclass(frozen=True)
class Finding:
    """Result of checking a sentence against numbers (reports/table/claims.py)."""

    state: str  # "holds", "does not hold", "cannot be shown with 3 seeds", "cannot be checked"
    words: str  # text with the numbers that decide the check, or with the reason why it cannot be checked


@dataclass(frozen=True)
class CheckedClaim:
    """A claim of the study, and the results of its checks."""

    text: str  # the sentence of the paper
    check: str  # the statement in the study that is checked
    paper: Finding | None  # result for the published numbers; None if the numbers are not published
    here: Finding  # result for the table's runs


@dataclass(frozen=True)
class Measure:
    """One metric of one row over the requested seeds."""

    values: tuple[float, ...]  # values of the seeds that have one
    requested: int  # number of seeds in the plan; 0 if the row is not scored on this set
    # The reason for each seed without a value: failed, diverged, running, waiting, nan, infinite, damaged,
    # NOT_REPORTED, NOT_IMPORTED, NOT_MEASURED, or "" if the seed is not trained or scored yet.
    lacking: tuple[str, ...] = ()
    reported: float | None = None  # the paper's value
    change: float | None = None  # change from base, over the same tokens and sentences (see `change_from`)
    change_so_far: float | None = None  # the change over the seeds that have a value
    reported_change: float | None = None  # the change between the paper's values
    best: bool = False  # whether the value is bold: the best of its column, or as `TableSpec.bold` describes
    test: Test | None = None  # the test of the change

    @property
    def complete(self) -> bool:
        """True if every requested seed has a value."""
        return self.requested > 0 and len(self.values) == self.requested

    @property
    def missing(self) -> bool:
        """True if a requested seed has no value."""
        return self.requested > 0 and not self.complete

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if a value is missing."""
        return mean(self.values) if self.complete else None

    @property
    def mean_so_far(self) -> float | None:
        """The mean over the seeds that have a value; None if no seed has a value, or if every seed has one.

        `report --provisional` prints this mean.
        """
        return mean(self.values) if self.missing and self.values else None

    @property
    def sd(self) -> float | None:
        """The sample standard deviation over seeds, with n - 1 in the denominator.

        None if a value is missing, or if there is only one seed.
        """
        return statistics.stdev(self.values) if self.complete and self.requested > 1 else None


@dataclass(frozen=True)
class Row:
    """A row of the study, with its numbers and the runs that gave them."""

    spec: RowSpec
    settings: Mapping[str, Any]  # settings to print: for base, those that vary in the table; else changes from base
    measures: Mapping[str, Measure]  # key of a column → measure
    num_params: int | None  # None if the task does not report it
    paper: Mapping[str, Any]  # published numbers that columns can print; the value None means not published
    outcomes: tuple[Outcome, ...]  # the run of each seed and its results
    here: str = ""  # for example "8 → 4", if the key contains a size that the profile changes; else ""

    @property
    def key(self) -> str:
        """The key of the row in the study."""
        return self.spec.key

    @property
    def group(self) -> str:
        """The group of the row; "" for none."""
        return self.spec.group

    @property
    def label(self) -> str:
        """The description that is printed instead of the settings; "" for none."""
        return self.spec.label

    @property
    def name(self) -> str:
        """The key as the table prints it."""
        return f"{self.key} ({self.here})" if self.here else self.key

    @property
    def state(self) -> str:
        """The state of the seed that needs attention most, in the order of ATTENTION."""
        states = [o.run.state for o in self.outcomes]
        return min(states, key=lambda state: ATTENTION.index(state) if state in ATTENTION else 0)

    @property
    def ensemble(self) -> bool:
        """True if the row is an ensemble, which has no seed."""
        return any(o.run.spec.members for o in self.outcomes)

    @property
    def branch(self) -> bool:
        """True if the row continues another row's trainings."""
        return any(o.run.spec.parent_run for o in self.outcomes)

    @property
    def imported(self) -> bool:
        """True if the row was trained elsewhere and `ablations import` brought its numbers into the store."""
        return any(o.run.spec.imported for o in self.outcomes)

    @property
    def stale(self) -> bool:
        """True if a seed was trained or scored by code that differs from the present code."""
        return any(o.stale for o in self.outcomes)

    def reads(self, setting: str) -> bool:
        """Return whether the row's runs depend on a setting, given by its dotted name."""
        return not self.outcomes[0].run.config.unread([setting])

    @property
    def n(self) -> int:
        """The smallest number of seeds with a value, over all measures of the row. NOT_MEASURED counts as a value.

        If no measure is requested, this is the number of trained seeds.
        """
        asked = [len(m.values) + m.lacking.count(NOT_MEASURED) for m in self.measures.values() if m.requested]
        return min(asked, default=sum(o.record is not None for o in self.outcomes))


@dataclass(frozen=True)
class Table:
    """A table with all data that a format prints."""

    spec: TableSpec
    title: str  # the title of the spec, or the chosen caption
    settings: Mapping[str, str]  # setting → column head
    columns: tuple[Column, ...]  # columns of metrics; a column of the set "*" is replaced by one column per set
    rows: tuple[Row, ...]
    base: str | None  # key of the row that changes are computed from; None if it is not selected (see also `base_of`)
    members: tuple[Outcome, ...] = ()  # runs whose weights ensembles and branches use; they may also be runs of a row
    cited: tuple[Row, ...] = ()  # published results of other systems, which are not run (reports/table/cited_rows.py)
    claims: tuple[CheckedClaim, ...] = ()
    footnotes: tuple[Note, ...] = ()
    warnings: tuple[str, ...] = ()
    test: str = ""  # mode of the tests (significance.py): "seeds", "paired" or "sentences"; "" if nothing was tested
    test_notes: tuple[Note, ...] = ()
    asked: str = ""  # the arguments of `ablations report` that select this table
    measured: Mapping[str, str] = field(default_factory=dict)  # number that runs measure at start or end → column head
    pivot: Mapping[str, str] = field(default_factory=dict)  # as in the spec; {} in a table of `families`
    groups: tuple[str, ...] = ()  # as in the spec; () in a table of `families`
    bases: Mapping[str, str] = field(default_factory=dict)  # group → key of its base, if there are `groups`
    spent: TableSpent = field(default_factory=lambda: TableSpent({}))  # cost of the table
    provisional: bool = False  # whether a cell with a missing seed prints the mean of the other seeds, with a mark
    chosen: Choices = field(default_factory=Choices)  # choices of the command, which replace those of the study
    last_change: str = ""  # day (UTC) on which the last attempt at the table's runs ended; "" if unknown
    bundle: str = ""  # for a bundle: the line that says what was recomputed; every format prints it first
    not_shown: int | None = 0  # number of other rows of the study with results; None if the ledger is damaged
    papers_corpus: bool = True  # whether the rows are trained on the corpus of the published numbers

    @property
    def listed(self) -> list[Column]:
        """The columns of metrics to print. Optional columns are included if the study or the command names them."""
        layers = (self.spec.choices, *self.spec.choices.of_formats, self.chosen)
        names = {name.lower() for layer in layers for name in (*layer.columns, *layer.hide)}
        names |= {name.split(".")[0] for name in names}
        return [
            column
            for column in self.columns
            if not column.optional
            or not names.isdisjoint(word.lower() for word in (column.key, column.metric, column.header))
        ]

    @property
    def measures(self) -> list[Measure]:
        """The measures of all rows in the columns to print."""
        columns = self.listed
        return [row.measures[column.key] for row in self.rows for column in columns]

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all rows."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    @cached_property
    def trainings(self) -> dict[str, Outcome]:
        """The outcomes of all rows, members and parent runs; the keys are run_ids."""
        return {outcome.run.run_id: outcome for outcome in (*self.members, *self.outcomes)}

    def compared(self, column: Column) -> list[Row]:
        """Return the rows whose change from base is known, because they are complete and comparable with base."""
        return [row for row in self.rows if row.measures[column.key].change is not None]

    @cached_property
    def base_row(self) -> Row | None:
        """The row that changes are computed from; None if it is not selected."""
        return next((row for row in self.rows if row.key == self.base), None)

    def base_of(self, row: Row) -> str | None:
        """Return the key of the row from which changes of `row` are computed: the base of its group or of the table."""
        return self.bases.get(row.group) if self.groups else self.base

    @property
    def families(self) -> list["Table"]:
        """One table for each set of rows that are compared with each other: the table itself, or one per group."""
        if not self.groups:
            return [self]
        rows = {group: tuple(row for row in self.rows if row.group == group) for group in self.groups}
        return [
            replace(self, rows=of, base=self.bases.get(group), pivot={}, groups=()) for group, of in rows.items() if of
        ]


def mean(values: Sequence[float]) -> float:
    """Return the mean. The sum of the values may be too large for a float."""
    try:
        return statistics.fmean(values)
    except OverflowError:
        return statistics.mean(values)


def missing_cells(table: Table) -> int:
    """Return the number of requested cells of metrics that have no value."""
    return sum(measure.missing for measure in table.measures)


# A perplexity is per word piece, so perplexities with different tokenizers are different quantities. The same holds for
# BLEU over different sentences or with different signatures. Numbers made by different code are not compared either:
# the files that both rows use must be equal. If two numbers may not be compared, no change is printed.


def _basis(outcome: Outcome, column: Column) -> tuple[Any, ...]:
    """Return the facts that must be equal for two values of a column so that their difference is meaningful."""
    scored = outcome.scored[column.set]
    parts: list[Any] = [sorted(scored.spec.inputs.items()), scored.signature(column.metric)]
    if column.per_piece:
        parts.append(tokenizer_of(outcome))
    return tuple(parts)


def tokenizer_of(outcome: Outcome) -> tuple[str, int | None]:
    """Return the digests of the run's tokenizers ("" if none are recorded) and the requested vocabulary size.

    The size is None if the training text determines it.
    """
    sums = outcome.record.data.tokenizer.sha256 if outcome.record else {}
    size = None if outcome.setting("data.sized_by_text") else outcome.setting("data.vocab_size")
    return " ".join(sorted({digest[:10] for digest in sums.values()})), size


def _sentences(rows: Iterable[Row], column: Column) -> set[str]:
    """Return the planned digests of the rows' evaluated sets. A row that is not evaluated on the set has no digest."""
    asked = (o.scored[column.set].spec.inputs for row in rows for o in row.outcomes if column.set in o.scored)
    return {repr(sorted(inputs.items())) for inputs in asked}


def one_basis(rows: Sequence[Row], column: Column) -> bool:
    """Return whether all values of a column may be compared with each other."""
    return measured_alike(rows, column) and not differing_code(rows, column)


def measured_alike(rows: Iterable[Row], column: Column) -> bool:
    """Return whether all values of a column measure the same quantity, whatever code made them."""
    outcomes = _measured(rows, column)
    return len({repr(_basis(o, column)) for o in outcomes}) <= 1  # repr, because lists cannot be hashed


def differing_code(rows: Iterable[Row], column: Column) -> list[str]:
    """Return the files (for a built-in task: the numeric parts) whose versions differ between the column's values.

    The names are sorted. Code without recorded files differs from all code with recorded files. Names from the top of
    the repository (see `Outcome.code`) are left out if names from the study's folder differ too.
    """
    known: dict[str, str] = {}
    codes = [code for code in (outcome.code(column) for outcome in _measured(rows, column)) if code]
    unknown = [NOT_RECORDED in code for code in codes]
    differing: set[str] = {NOT_RECORDED} if any(unknown) and not all(unknown) else set()
    for code in codes:
        differing |= {
            name for name, its in code.items() if known.get(name, its) != its or (name in known and its == EDITED)
        }
        known |= code
    return sorted(name for name in differing if not name.startswith("/")) or sorted(differing)


def _measured(rows: Iterable[Row], column: Column) -> list[Outcome]:
    return [o for row in rows for o in row.outcomes if o.measured(column.set, column.metric) is not None]


def change_from(row: Row, base: Row, column: Column) -> float | None:
    """Return the row's mean minus base's mean, on the column's scale.

    Return None if a seed has no value, or if the values are not comparable.
    """
    ours, theirs = row.measures[column.key], base.measures[column.key]
    return change_so_far(row, base, column) if ours.complete and theirs.complete else None


def change_so_far(row: Row, base: Row, column: Column) -> float | None:
    """Return the change over the seeds that have a value.

    Return None if no seed of the row or of base has a value, or if the values are not comparable.
    """
    ours, theirs = row.measures[column.key], base.measures[column.key]
    if row is base or not (ours.values and theirs.values and one_basis((row, base), column)):
        return None
    return difference_of_means(ours.values, theirs.values, column)


def with_changes(rows: tuple[Row, ...], base: str | None, columns: Sequence[Column]) -> tuple[Row, ...]:
    """Return the rows with their changes from the row `base`, without tests; unchanged if `base` is not among them."""
    reference = next((row for row in rows if row.key == base), None)
    if reference is None:
        return rows
    return tuple(replace(row, measures={c.key: _from(reference, row, c) for c in columns}) for row in rows)


def _from(base: Row, row: Row, column: Column) -> Measure:
    return replace(
        row.measures[column.key],
        change=change_from(row, base, column),
        change_so_far=change_so_far(row, base, column),
        reported_change=reported_change(row, base, column),
        test=None,
    )


def reported_change(row: Row, base: Row, column: Column) -> float | None:
    """Return the change between the paper's values; None if a value is missing or the test sentences differ."""
    ours, theirs = row.measures[column.key].reported, base.measures[column.key].reported
    if row is base or ours is None or theirs is None or len(_sentences((row, base), column)) > 1:
        return None
    return difference_of_means([ours], [theirs], column)


def difference_of_means(ours: Sequence[float], theirs: Sequence[float], column: Column) -> float | None:
    """Return the difference between two means, on the column's scale; None if a value has no logarithm."""
    if column.logarithmic and min(*ours, *theirs) <= 0:
        return None  # a user's trainer may report numbers that are not positive
    change = mean(compared_values(ours, column)) - mean(compared_values(theirs, column))
    return change if math.isfinite(change) else None


def compared_values(values: Sequence[float], column: Column) -> list[float]:
    """Return the values to compare: natural logarithms if the column is logarithmic."""
    return [math.log(value) for value in values] if column.logarithmic else list(values)


def change_digits(column: Column) -> int:
    """Return the number of digits of a change after the decimal point. Logarithms have three."""
    return 3 if column.logarithmic else column.digits
