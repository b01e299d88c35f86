"""The table as data: rows in the study's order, each metric over its seeds, its change from base, the paper's values.

Only titles and notes are text to print; `reports/render` does the layout. A measure with a missing seed has no mean.
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

# The state of a row is the first of these that one of its seeds has.
BRANCH = "‡"  # marks rows that share steps with another
IMPORTED = "§"  # marks rows that were trained elsewhere
NOT_REPORTED = "not reported"  # why a finished run of a user's trainer has no number of a metric
NOT_MEASURED = "not measured"  # why an evaluation of a version before the metric has none
ATTENTION = ("damaged", "failed", "running", "waiting", "missing", "stale", "finished")


@dataclass(frozen=True)
class Test:
    """A row's change from base in one column, tested (reports/results/significance.py)."""

    p: float  # two-sided, corrected for the column's rows
    low: float  # 95 % interval of the change; between seeds for all rows at once, between sentences for each
    high: float
    paired: tuple[float, float] | None  # between seeds: 95 % interval of the seeds' own differences, this row alone
    by: str = ""  # the test, in words

    @property
    def marked(self) -> bool:
        """Return whether the change has a star."""
        return self.p < ALPHA


@dataclass(frozen=True)
class Finding:
    """Result of checking a sentence against numbers (reports/table/claims.py)."""

    state: str  # "holds", "does not hold", "cannot be shown with 3 seeds", "cannot be checked"
    words: str  # the numbers that decide, or what is missing


@dataclass(frozen=True)
class CheckedClaim:
    """A claim of the study with what was found."""

    text: str  # the paper's sentence
    check: str  # ours
    paper: Finding | None  # in the published numbers; None: nothing of it is published
    here: Finding


@dataclass(frozen=True)
class Measure:
    """One metric of one row over the requested seeds."""

    values: tuple[float, ...]  # of the seeds that have one
    requested: int  # seeds of the plan; 0: the row is not scored on this set
    # Why, per seed without a value: failed, diverged, running, waiting, nan, infinite, damaged, NOT_REPORTED,
    # NOT_MEASURED, or "" for not done.
    lacking: tuple[str, ...] = ()
    reported: float | None = None  # the paper's value
    change: float | None = None  # from base, over the same tokens and sentences (see `change_from`)
    change_so_far: float | None = None  # the same over the seeds that are there, where one is missing
    reported_change: float | None = None
    best: bool = False  # of its column, or by `TableSpec.bold` not told from the best (reports/results/significance.py)
    test: Test | None = None  # of the change

    @property
    def complete(self) -> bool:
        """Return whether every requested seed has a value."""
        return self.requested > 0 and len(self.values) == self.requested

    @property
    def missing(self) -> bool:
        """Return whether a requested seed has no value."""
        return self.requested > 0 and not self.complete

    @property
    def mean(self) -> float | None:
        """The mean over the seeds; None if one is missing."""
        return mean(self.values) if self.complete else None

    @property
    def mean_so_far(self) -> float | None:
        """The mean over the seeds that are there, where one is missing: provisional, for `report --provisional`."""
        return mean(self.values) if self.missing and self.values else None

    @property
    def sd(self) -> float | None:
        """Sample standard deviation over seeds (n - 1 in the denominator)."""
        return statistics.stdev(self.values) if self.complete and self.requested > 1 else None


@dataclass(frozen=True)
class Row:
    """A row of the study, with its numbers and where they come from."""

    spec: RowSpec
    settings: Mapping[str, Any]  # that it reads: what differs from base; of base itself, what varies in the table
    measures: Mapping[str, Measure]  # by column key
    num_params: int | None  # None: the task does not say
    paper: Mapping[str, Any]  # published numbers that columns can print; None: none
    outcomes: tuple[Outcome, ...]  # one per seed: where every number comes from
    here: str = ""  # "8 → 4": the key names a size that the profile scales

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
        """The key as it is printed."""
        return f"{self.key} ({self.here})" if self.here else self.key

    @property
    def state(self) -> str:
        """The state of the seed that most needs attention (ATTENTION)."""
        states = [o.run.state for o in self.outcomes]
        return min(states, key=lambda state: ATTENTION.index(state) if state in ATTENTION else 0)

    @property
    def ensemble(self) -> bool:
        """Return whether the row's one entry is an ensemble, which has no seed."""
        return any(o.run.spec.members for o in self.outcomes)

    @property
    def branch(self) -> bool:
        """Return whether the row begins with another row's trainings."""
        return any(o.run.spec.parent_run for o in self.outcomes)

    @property
    def imported(self) -> bool:
        """Return whether the row was trained elsewhere, and its numbers were brought here by `ablations import`."""
        return any(o.run.spec.imported for o in self.outcomes)

    @property
    def stale(self) -> bool:
        """Return whether a seed was trained or scored by other code than the present one."""
        return any(o.stale for o in self.outcomes)

    def reads(self, setting: str) -> bool:
        """Return whether anything in the row's run depends on a setting, by its dotted name."""
        return not self.outcomes[0].run.config.unread([setting])

    @property
    def n(self) -> int:
        """Seeds that every measure of the row has; one that was evaluated before a metric was added counts."""
        asked = [len(m.values) + m.lacking.count(NOT_MEASURED) for m in self.measures.values() if m.requested]
        return min(asked, default=sum(o.record is not None for o in self.outcomes))


@dataclass(frozen=True)
class Table:
    """Everything that a format prints."""

    spec: TableSpec
    title: str  # the spec's, or the chosen caption
    settings: Mapping[str, str]  # setting → head
    columns: tuple[Column, ...]  # "*" resolved: one per set
    rows: tuple[Row, ...]
    base: str | None  # the row that changes are from; None: not selected (of a table with `groups` see `base_of`)
    members: tuple[Outcome, ...] = ()  # trainings that ensembles among the rows read; a row may have them too
    cited: tuple[Row, ...] = ()  # published by others, nothing of them run here (reports/table/notes.py)
    claims: tuple[CheckedClaim, ...] = ()
    footnotes: tuple[Note, ...] = ()
    warnings: tuple[str, ...] = ()
    test: str = ""  # what marks changes: "seeds" or "sentences"; "" for no test
    test_notes: tuple[Note, ...] = ()
    asked: str = ""  # the words after `ablations report` that select this table
    measured: Mapping[str, str] = field(default_factory=dict)  # heads of what runs measure at their start and end
    pivot: Mapping[str, str] = field(default_factory=dict)  # the spec's; none in one of `families`
    groups: tuple[str, ...] = ()  # the spec's; none in one of `families`
    bases: Mapping[str, str] = field(default_factory=dict)  # of `groups`: each one's own base
    spent: TableSpent = field(default_factory=lambda: TableSpent({}))  # what it cost
    provisional: bool = False  # whether a cell with a missing seed prints the mean of the others, marked as such
    chosen: Choices = field(default_factory=Choices)  # the command's, over the study's
    last_change: str = ""  # day (UTC) on which the last attempt at its runs ended; "" if no record says
    bundle: str = ""  # of a bundle: what of it was computed again; the first line of every format, whatever is chosen
    not_shown: int | None = 0  # other rows of its study that got results; None: the store's ledger is damaged
    papers_corpus: bool = True  # whether published numbers are of the corpus that the rows are trained on

    @property
    def listed(self) -> list[Column]:
        """The columns of metrics that formats print: optional ones only where the study or the command names them."""
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
        """The metrics of all rows in the columns that formats print."""
        columns = self.listed
        return [row.measures[column.key] for row in self.rows for column in columns]

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcomes of all rows."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    @cached_property
    def trainings(self) -> dict[str, Outcome]:
        """The outcomes of all rows, members and parent runs, by run_id."""
        return {outcome.run.run_id: outcome for outcome in (*self.members, *self.outcomes)}

    def compared(self, column: Column) -> list[Row]:
        """Rows whose change from base is known: complete, over the same tokens and sentences."""
        return [row for row in self.rows if row.measures[column.key].change is not None]

    @cached_property
    def base_row(self) -> Row | None:
        """The row that changes are from; None if it was not selected."""
        return next((row for row in self.rows if row.key == self.base), None)

    def base_of(self, row: Row) -> str | None:
        """Key of the row that this one's changes are from: its group's own where groups are compared within."""
        return self.bases.get(row.group) if self.groups else self.base

    @property
    def families(self) -> list["Table"]:
        """The rows that are compared with each other, as tables: all, or those of each of `groups`."""
        if not self.groups:
            return [self]
        rows = {group: tuple(row for row in self.rows if row.group == group) for group in self.groups}
        return [
            replace(self, rows=of, base=self.bases.get(group), pivot={}, groups=()) for group, of in rows.items() if of
        ]


def mean(values: Sequence[float]) -> float:
    """The mean, also of values whose sum is too large for a float."""
    try:
        return statistics.fmean(values)
    except OverflowError:
        return statistics.mean(values)


def missing_cells(table: Table) -> int:
    """The number of requested metric cells without a value."""
    return sum(measure.missing for measure in table.measures)


# --- Which numbers may be compared, and the change of a row from base
# A perplexity counts per word-piece: over another tokenizer it is another quantity. The same is true of BLEU over other
# sentences or under another signature, and of any number that other code made: two rows are compared only if the files
# that both use are equal. Otherwise no change is printed.


def _basis(outcome: Outcome, column: Column) -> tuple[Any, ...]:
    """Return what must be equal between two values of a column so that their difference has a meaning."""
    scored = outcome.scored[column.set]
    parts: list[Any] = [sorted(scored.spec.inputs.items()), scored.signature(column.metric)]
    if column.per_piece:
        parts.append(tokenizer_of(outcome))
    return tuple(parts)


def tokenizer_of(outcome: Outcome) -> tuple[str, int | None]:
    """Return the digests of the run's tokenizers ("" if it recorded none) and the requested vocabulary size.

    The size is None if the run's text decides it.
    """
    sums = outcome.record.data.tokenizer.sha256 if outcome.record else {}
    size = None if outcome.setting("data.sized_by_text") else outcome.setting("data.vocab_size")
    return " ".join(sorted({digest[:10] for digest in sums.values()})), size


def _sentences(rows: Iterable[Row], column: Column) -> set[str]:
    """Return the planned digests of the rows' evaluated sets; a row that is not evaluated on the set has none."""
    asked = (o.scored[column.set].spec.inputs for row in rows for o in row.outcomes if column.set in o.scored)
    return {repr(sorted(inputs.items())) for inputs in asked}


def one_basis(rows: Sequence[Row], column: Column) -> bool:
    """Return whether all values of a column may be compared with each other."""
    return measured_alike(rows, column) and not differing_code(rows, column)


def measured_alike(rows: Iterable[Row], column: Column) -> bool:
    """Return whether all values of a column measure the same quantity, whatever code made them."""
    outcomes = _measured(rows, column)
    return len({repr(_basis(o, column)) for o in outcomes}) <= 1  # written out, since parts may be lists


def differing_code(rows: Iterable[Row], column: Column) -> list[str]:
    """Return the files (for a built-in task: the parts) that values of a column share by name but not by content.

    The names are sorted. Code whose files are not recorded is equal only to itself. Names from the top (see
    `Outcome.code`) are left out if names from the study's folder show the same.
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
    """Return the mean over seeds minus base's mean, on the column's scale; None if incomplete or not comparable."""
    ours, theirs = row.measures[column.key], base.measures[column.key]
    return change_so_far(row, base, column) if ours.complete and theirs.complete else None


def change_so_far(row: Row, base: Row, column: Column) -> float | None:
    """Return the same change over the seeds that have a value."""
    ours, theirs = row.measures[column.key], base.measures[column.key]
    if row is base or not (ours.values and theirs.values and one_basis((row, base), column)):
        return None
    return difference_of_means(ours.values, theirs.values, column)


def with_changes(rows: tuple[Row, ...], base: str | None, columns: Sequence[Column]) -> tuple[Row, ...]:
    """Return the rows with their changes from the row `base`, not tested yet; unchanged if `base` is none of them."""
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
    """Return the change between the paper's values; None for rows that are scored on other sentences."""
    ours, theirs = row.measures[column.key].reported, base.measures[column.key].reported
    if row is base or ours is None or theirs is None or len(_sentences((row, base), column)) > 1:
        return None
    return difference_of_means([ours], [theirs], column)


def difference_of_means(ours: Sequence[float], theirs: Sequence[float], column: Column) -> float | None:
    """Return the difference between two means, on the column's scale; None if a value has no logarithm."""
    if column.logarithmic and min(*ours, *theirs) <= 0:
        return None  # a trainer may report any number
    change = mean(compared_values(ours, column)) - mean(compared_values(theirs, column))
    return change if math.isfinite(change) else None


def compared_values(values: Sequence[float], column: Column) -> list[float]:
    """Return the values that are compared: logarithms if the column is logarithmic."""
    return [math.log(value) for value in values] if column.logarithmic else list(values)


def change_digits(column: Column) -> int:
    """Return the digits of a change after the decimal point: logarithms need three."""
    return 3 if column.logarithmic else column.digits
