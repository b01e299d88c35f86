"""Changes of planned runs for tests."""

from dataclasses import replace
from typing import Any

from ablations.planning.planned import PlannedRun


def with_spec(run: PlannedRun, **fields: Any) -> PlannedRun:
    """The run with other fields of its RunSpec."""
    return replace(run, spec=replace(run.spec, **fields))


def with_state(run: PlannedRun, **fields: Any) -> PlannedRun:
    """The run with other fields of its RunState."""
    return replace(run, store_state=run.store_state._replace(**fields))
