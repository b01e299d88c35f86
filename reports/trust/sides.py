"""One side of a comparison: the cells of a store's table, or of an earlier table printed as JSON or CSV."""

import csv
import io
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.tasks.columns import Column
from reports.results.table import Row, Table

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
