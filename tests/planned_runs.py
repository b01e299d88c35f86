"""Change planned runs and rows of a table for tests."""

from dataclasses import replace
from typing import Any, TypeVar

from ablations.planning.plan import PlannedRun
from reports.results.table import Row
from reports.spec.table_spec import TableRun

Run = TypeVar("Run", PlannedRun, TableRun)


def with_spec(run: Run, **fields: Any) -> Run:
    """Return a copy of the run with other fields of its RunSpec."""
    return replace(run, spec=replace(run.spec, **fields))


def with_state(run: Run, **fields: Any) -> Run:
    """Return a copy of the run with other fields of its RunState."""
    return replace(run, store_state=run.store_state._replace(**fields))


def described(row: Row, **fields: Any) -> Row:
    """Return a copy of the row with another key, group or label."""
    return replace(row, spec=replace(row.spec, **fields))
