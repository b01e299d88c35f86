"""Two tables side by side: which rows moved, with intervals.

The other table may be another store or study, a bundle, or printed as JSON or CSV.
"""

import csv
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablations.study.messages import number
from experiments.errors import UserError
from experiments.tasks.columns import Column
from reports.render.cells import fixed
from reports.render.markdown import escape, in_cell, pipe
from reports.results import comparable, dunnett, resampling
from reports.results.results import CountsOf
from reports.results.table import Row, Table

# --- One side: the cells of a store's table, or of a table printed as JSON or CSV


Look = Callable[[str, Column], "Side | None"]


@dataclass(frozen=True)
class Side:
    """One cell: its mean and spread over n seeds, for an interval of the difference."""

    mean: float | None
    sd: float | None
    n: int
    run_ids: tuple[str, ...] = ()
    row: Row | None = None  # of a table that was built from a store


def side_of(table: Table) -> Look:
    """A look-up of a table's cells by row key and column; it gives None if the row is not evaluated on that set."""
    rows = {row.key: row for row in table.rows}

    def look(key: str, column: Column) -> Side | None:
        measure = rows[key].measures.get(column.key) if key in rows else None
        if measure is None or not measure.requested:
            return None
        ids = tuple(outcome.run.run_id for outcome in rows[key].outcomes)
        return Side(measure.mean, measure.sd, len(measure.values), ids, rows[key])

    return look


def side_of_file(path: Path) -> tuple[Look, list[str]]:
    """The same for a table printed as JSON or CSV by this program, and its row keys. Raises UserError for others."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    rows = {str(row["row"]): row for row in _rows(text)}
    if not rows:
        raise UserError(f"{path} is not a table of this program: `ablations report --format json` (or csv) writes one.")

    def look(key: str, column: Column) -> Side | None:
        row = rows.get(key)
        if row is None or column.key not in row:
            return None
        ids = row.get("run_ids") or ()
        ids = ids.split() if isinstance(ids, str) else ids
        mean, sd = _number(row[column.key]), _number(row.get(f"{column.key}_sd"))
        return Side(mean, sd, int(_number(row.get("n")) or 0), tuple(map(str, ids)))

    return look, list(rows)


def _rows(text: str) -> list[dict[str, Any]]:
    try:
        rows = json.loads(text)
    except ValueError:
        rows = list(csv.DictReader(io.StringIO(text)))
    usable = isinstance(rows, list) and all(isinstance(row, dict) and row.get("row") for row in rows)
    return rows if usable else []


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


# --- The comparison


@dataclass(frozen=True)
class Moved:
    """One cell on both sides. Differences are here minus there, on the column's scale."""

    row: str
    column: Column
    here: float | None
    there: float | None
    difference: float | None
    low: float | None = None  # 95 % interval
    high: float | None = None
    over: str = ""  # what the interval is over: seeds, sentences; or why there is none

    @property
    def moved(self) -> bool:
        """Whether the interval of the difference excludes 0."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def compare(table: Table, there: Look, counts_here: CountsOf, counts_there: CountsOf | None) -> Iterator[Moved]:
    """The cells of the table for which at least one side has a number."""
    here = side_of(table)
    for row in table.rows:
        for column in table.columns:
            ours, theirs = here(row.key, column), there(row.key, column)
            if ours is not None or theirs is not None:
                yield _cell(row.key, column, ours, theirs, (counts_here, counts_there))


def _cell(
    key: str, column: Column, ours: Side | None, theirs: Side | None, counts: tuple[CountsOf, CountsOf | None]
) -> Moved:
    here, there = ours.mean if ours else None, theirs.mean if theirs else None
    if ours is None or theirs is None or here is None or there is None:
        return Moved(key, column, here, there, None, over="a number is missing")
    if ours.row and theirs.row and not comparable.one_basis((ours.row, theirs.row), column):
        return Moved(key, column, here, there, None, over="other tokens, sentences or signature")
    if column.logarithmic and min(here, there) <= 0:
        return Moved(key, column, here, there, None, over="a number has no logarithm")
    difference = _scaled(here, column) - _scaled(there, column)
    if ours.run_ids and ours.run_ids == theirs.run_ids and difference == 0:
        return Moved(key, column, here, there, difference, over="the same runs")
    found = _over_seeds(ours, theirs, column) or _over_sentences(ours, theirs, column, counts)
    if found is None:
        alone = ours.n < 2 or theirs.n < 2
        return Moved(key, column, here, there, difference, over="one seed" if alone else "no spread between seeds")
    over, (low, high) = found
    return Moved(key, column, here, there, difference, low, high, over)


def _scaled(value: float, column: Column) -> float:
    return math.log(value) if column.logarithmic else value


def _over_seeds(ours: Side, theirs: Side, column: Column) -> tuple[str, tuple[float, float]] | None:
    """Welch's 95 % interval from means, deviations and numbers of seeds: the two spreads may differ."""
    from scipy.special import stdtrit

    if ours.n < 2 or theirs.n < 2 or ours.sd is None or theirs.sd is None or ours.mean is None or theirs.mean is None:
        return None
    relative = column.logarithmic  # sd of ln x is about sd(x)/x
    sides = ((ours, ours.sd, ours.mean), (theirs, theirs.sd, theirs.mean))
    parts = [sd * sd / side.n / (mean * mean if relative else 1) for side, sd, mean in sides]
    variance = sum(parts)
    difference = _scaled(ours.mean, column) - _scaled(theirs.mean, column)
    below = sum(part * part / (side.n - 1) for part, (side, *_) in zip(parts, sides, strict=True))
    if not 0 < below < math.inf:  # no spread, or too large a one for floating point
        return None
    freedom = variance * variance / below
    half = float(stdtrit(freedom, 1 - dunnett.ALPHA / 2)) * math.sqrt(variance)
    return "seeds", (difference - half, difference + half)


def _over_sentences(
    ours: Side, theirs: Side, column: Column, counts: tuple[CountsOf, CountsOf | None]
) -> tuple[str, tuple[float, float]] | None:
    if column.counts is None or counts[1] is None or ours.row is None or theirs.row is None:
        return None
    pairs = zip((counts[0], counts[1]), (ours.row, theirs.row), strict=True)
    seeds = min(ours.n, theirs.n)
    found = [[read(outcome, column) for outcome in row.outcomes[:seeds]] for read, row in pairs]
    usable = [[c for c in side if c is not None] for side in found]
    if any(len(side) != seeds or not seeds for side in usable) or len({c.shape for side in usable for c in side}) > 1:
        return None
    here, there = map(resampling.pooled, usable)
    result = resampling.bootstrap(there, [here], column.counts.of)[0]
    return "sentences", (result.low, result.high)


def as_text(cells: list[Moved], title: str, notes: Mapping[str, str]) -> str:
    """Markdown: one line per cell. `notes` are printed below, name: text."""
    heads = ["row", "column", "there", "here", "difference", "95% interval", "over"]
    lines = [[in_cell(text) for text in _line(cell)] for cell in cells]
    moved = sum(cell.moved for cell in cells)
    below = [
        f"{moved} of {number(len(cells), 'cell')} moved (*): the 95 % interval excludes 0, with no correction for many "
        "cells."
    ]
    logarithmic = dict.fromkeys(cell.column.metric for cell in cells if cell.column.logarithmic)
    if logarithmic:
        below.append(f"Differences of {', '.join(logarithmic)} are of natural logarithms.")
    below += [f"{name}: {text}" for name, text in notes.items()]
    table = pipe(heads, lines, [True, True, False, False, False, False, True])
    return f"**{escape(title)}**\n\n{table}\n" + "".join(f"- {escape(note)}\n" for note in below)


def _line(cell: Moved) -> list[str]:
    digits, change = cell.column.digits, max(2, comparable.change_digits(cell.column))
    values = ["–" if value is None else fixed(value, digits) for value in (cell.there, cell.here)]
    difference = "" if cell.difference is None else fixed(cell.difference, change, signed=True)
    bounds = ""
    if cell.low is not None and cell.high is not None:
        bounds = f"{fixed(cell.low, change, signed=True)} … {fixed(cell.high, change, signed=True)}"
    return [cell.row, cell.column.header, *values, difference + ("*" if cell.moved else ""), bounds, cell.over]


def as_records(cells: list[Moved]) -> list[dict[str, Any]]:
    """One flat record per cell, for JSON."""
    names = ("row", "here", "there", "difference", "low", "high", "over", "moved")
    return [{"column": cell.column.key} | {name: getattr(cell, name) for name in names} for cell in cells]
