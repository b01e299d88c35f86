"""Compare two tables cell by cell, with confidence intervals of the differences.

The other table may come from another store, from another study, or from a bundle.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.messages import number
from experiments.tasks.columns import Column
from reports.render.markdown import escape, in_cell, pipe
from reports.results import dunnett, resampling
from reports.results.evaluation_readers import CountsOf
from reports.results.number_text import fixed
from reports.results.table import (
    Measure,
    Row,
    Table,
    change_digits,
    compared_values,
    difference_of_means,
    measured_alike,
)


@dataclass(frozen=True)
class Moved:
    """A cell in this table ("here") and in the other table ("there").

    The difference is here minus there, on the column's scale.
    """

    row: str
    column: Column
    here: float | None
    there: float | None
    difference: float | None
    low: float | None = None  # lower end of the 95 % interval of the difference
    high: float | None = None  # upper end
    over: str = ""  # source of variation of the interval ("seeds" or "sentences"), or why there is no interval

    @property
    def moved(self) -> bool:
        """True if the interval of the difference excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


Counts = tuple[CountsOf, CountsOf]  # functions that read the counts of this table and of the other table


def compare(table: Table, other: Table, counts: Counts) -> Iterator[Moved]:
    """Yield the cells of `table` that at least one of the two tables evaluates."""
    others = {row.key: row for row in other.rows}
    for row in table.rows:
        for column in table.listed:
            sides = row, others.get(row.key)
            if any(side and column.key in side.measures and side.measures[column.key].requested for side in sides):
                yield _cell(column, *sides, counts)


def _cell(column: Column, here_row: Row, there_row: Row | None, counts: Counts) -> Moved:
    ours, theirs = here_row.measures[column.key], there_row.measures.get(column.key) if there_row else None
    cell = Moved(here_row.key, column, ours.mean, theirs.mean if theirs else None, None)
    if there_row is None or theirs is None or cell.here is None or cell.there is None:
        return replace(cell, over="a number is missing")
    if not measured_alike((here_row, there_row), column):
        return replace(cell, over="other tokens, sentences or signature")
    difference = difference_of_means(ours.values, theirs.values, column)
    if difference is None:
        return replace(cell, over="a number has no logarithm")
    cell = replace(cell, difference=difference)
    ids = [[outcome.run.run_id for outcome in row.outcomes] for row in (here_row, there_row)]
    if ids[0] == ids[1] and difference == 0:
        return replace(cell, over="the same runs")
    if (half := _over_seeds(ours, theirs, column)) is not None:
        return replace(cell, low=difference - half, high=difference + half, over="seeds")
    if (found := _over_sentences(here_row, there_row, column, counts)) is not None:
        return replace(cell, low=found.low, high=found.high, over="sentences")
    alone = len(ours.values) < 2 or len(theirs.values) < 2
    return replace(cell, over="one seed" if alone else "no spread between seeds")


def _over_seeds(ours: Measure, theirs: Measure, column: Column) -> float | None:
    """Return half the width of Welch's 95 % interval, which allows the two tables to have different spreads.

    Return None if the interval cannot be computed or is infinite.
    """
    from scipy.special import stdtrit

    here, there = (compared_values(side.values, column) for side in (ours, theirs))
    if (family := dunnett.t3(there, here)) is None:
        return None
    half = float(stdtrit(family.freedom, 1 - dunnett.ALPHA / 2)) * family.error(len(here))
    return half if math.isfinite(half) else None


def _over_sentences(ours: Row, theirs: Row, column: Column, counts: Counts) -> resampling.Resampled | None:
    if column.counts is None:
        return None
    seeds = min(len(row.measures[column.key].values) for row in (ours, theirs))
    sides = zip(counts, (ours, theirs), strict=True)
    found = [[read(outcome, column) for outcome in row.outcomes[:seeds]] for read, row in sides]
    usable = [[c for c in side if c is not None] for side in found]
    if any(len(side) != seeds or not seeds for side in usable) or len({c.shape for side in usable for c in side}) > 1:
        return None
    here, there = map(resampling.pooled, usable)
    return resampling.bootstrap(there, [here], column.counts.of)[0]


def as_text(cells: list[Moved], title: str, notes: Mapping[str, str]) -> str:
    """Return the comparison in Markdown, with one line per cell. notes: name → text of a note below the table."""
    heads = ["row", "column", "there", "here", "difference", "95% interval", "over"]
    lines = [[in_cell(text) for text in _line(cell)] for cell in cells]
    moved = sum(cell.moved for cell in cells)
    below = [
        f"{moved} of {number(len(cells), 'cell')} differ (*): the 95 % interval excludes 0, without correction for "
        "the number of cells."
    ]
    logarithmic = dict.fromkeys(cell.column.metric for cell in cells if cell.column.logarithmic)
    if logarithmic:
        below.append(f"Differences of {', '.join(logarithmic)} are differences of natural logarithms.")
    below += [f"{name}: {text}" for name, text in notes.items()]
    table = pipe(heads, lines, [True, True, False, False, False, False, True])
    return f"**{escape(title)}**\n\n{table}\n" + "".join(f"- {escape(note)}\n" for note in below)


def _line(cell: Moved) -> list[str]:
    digits, change = cell.column.digits, max(2, change_digits(cell.column))
    values = [fixed(value, digits) or "–" for value in (cell.there, cell.here)]
    difference = fixed(cell.difference, change, signed=True)
    bounds = ""
    if cell.low is not None and cell.high is not None:
        bounds = f"{fixed(cell.low, change, signed=True)} … {fixed(cell.high, change, signed=True)}"
    return [cell.row, cell.column.header, *values, difference + ("*" if cell.moved else ""), bounds, cell.over]


def as_records(cells: list[Moved]) -> list[dict[str, Any]]:
    """Return one flat record per cell, for JSON."""
    names = ("row", "here", "there", "difference", "low", "high", "over", "moved")
    return [{"column": cell.column.key} | {name: getattr(cell, name) for name in names} for cell in cells]
