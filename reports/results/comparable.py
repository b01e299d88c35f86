"""Which numbers may be compared, and the change of a row from base.

A perplexity counts per word-piece: over another tokenizer it is another quantity. So is BLEU of other sentences, or
under another signature, and any number that other code has made: rows are compared only if the files that they have in
common are the same. Such a change is not printed at all.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from experiments.tasks.columns import Column
from experiments.tasks.own.code_files import EDITED
from reports.results.results import NOT_RECORDED, Outcome
from reports.results.table import Measure, Row, mean


def basis(outcome: Outcome, column: Column) -> tuple[Any, ...]:
    """What must be equal between two values of a column for their difference to mean something."""
    scored = outcome.scored[column.set]
    parts: list[Any] = [sorted(scored.spec.inputs.items()), scored.signature(column.metric)]
    if column.per_piece:
        parts.append(tokenizer(outcome))
    return tuple(parts)


def tokenizer(outcome: Outcome) -> tuple[str, int | None]:
    """The digests of the tokenizers that the run trained with ("" if it recorded none), and the requested size.

    None: the run read no size, because its text decides it.
    """
    sums = outcome.record.data.tokenizer.sha256 if outcome.record else {}
    size = None if outcome.setting("data.sized_by_text") else outcome.setting("data.vocab_size")
    return " ".join(sorted({digest[:10] for digest in sums.values()})), size


def _sentences(rows: Iterable[Row], column: Column) -> set[str]:
    """Digests of what the rows' sets hold, as planned; a row that does not ask for the set has none."""
    asked = (o.scored[column.set].spec.inputs for row in rows for o in row.outcomes if column.set in o.scored)
    return {repr(sorted(inputs.items())) for inputs in asked}


def one_basis(rows: Sequence[Row], column: Column) -> bool:
    """Whether all values of a column may be compared with each other."""
    return measured_alike(rows, column) and not differing_code(rows, column)


def measured_alike(rows: Iterable[Row], column: Column) -> bool:
    """Whether all values of a column are of the same quantity, whatever code made them."""
    outcomes = _measured(rows, column)
    return len({repr(basis(o, column)) for o in outcomes}) <= 1  # written out, since parts may be lists


def differing_code(rows: Iterable[Row], column: Column) -> list[str]:
    """The files (of a built-in task: the parts) that values of a column have in common with other content, sorted.

    Code whose files are not recorded is equal only to itself. Names from the top (see `Outcome.code`) are left out if
    the same is known by names from the study's folder.
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


def change(row: Row, base: Row, column: Column) -> float | None:
    """Mean over seeds minus base's, on the column's scale. None where incomplete or not comparable."""
    ours, theirs = row.measures[column.key], base.measures[column.key]
    return change_so_far(row, base, column) if ours.complete and theirs.complete else None


def change_so_far(row: Row, base: Row, column: Column) -> float | None:
    """The same over the seeds that are there."""
    ours, theirs = row.measures[column.key], base.measures[column.key]
    if row is base or not (ours.values and theirs.values and one_basis((row, base), column)):
        return None
    return difference(ours.values, theirs.values, column)


def with_changes(rows: tuple[Row, ...], base: str | None, columns: Sequence[Column]) -> tuple[Row, ...]:
    """The rows with their changes from one of them, not tested yet; as they are if `base` is none of them."""
    reference = next((row for row in rows if row.key == base), None)
    if reference is None:
        return rows
    return tuple(replace(row, measures={c.key: _from(reference, row, c) for c in columns}) for row in rows)


def _from(base: Row, row: Row, column: Column) -> Measure:
    return replace(
        row.measures[column.key],
        change=change(row, base, column),
        change_so_far=change_so_far(row, base, column),
        reported_change=reported_change(row, base, column),
        test=None,
    )


def reported_change(row: Row, base: Row, column: Column) -> float | None:
    """The same between the paper's values; None for rows that are scored on other sentences."""
    ours, theirs = row.measures[column.key].reported, base.measures[column.key].reported
    if row is base or ours is None or theirs is None or len(_sentences((row, base), column)) > 1:
        return None
    return difference([ours], [theirs], column)


def difference(ours: Sequence[float], theirs: Sequence[float], column: Column) -> float | None:
    """Between the means of values, on the column's scale; None where a value has no logarithm."""
    if column.logarithmic and min(*ours, *theirs) <= 0:
        return None  # whatever wrote it, it has no logarithm
    change = mean(scale(ours, column)) - mean(scale(theirs, column))
    return change if math.isfinite(change) else None


def scale(values: Sequence[float], column: Column) -> list[float]:
    """Values as they are compared: their logarithms where the column is logarithmic."""
    return [math.log(value) for value in values] if column.logarithmic else list(values)


def change_digits(column: Column) -> int:
    """Digits of a change after the point: logarithms need three."""
    return 3 if column.logarithmic else column.digits
