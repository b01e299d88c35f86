"""A run in the form that the program writes to a tracking store."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from experiments.errors import UserError
from experiments.records import Member
from experiments.run_spec import RunSpec
from experiments.store.layout import Store, spec_of
from experiments.store.results import TrainingResult


@dataclass(frozen=True)
class TrackedRun:
    """A run with its state and its table rows."""

    spec: RunSpec
    status: str  # RUNNING, FINISHED, FAILED, KILLED
    members: tuple[Member, ...] = ()
    error: str = ""
    imported: str = ""  # source of an imported run; "" for other runs
    imported_t: float = 0.0  # Unix time of the import

    @property
    def run_id(self) -> str:
        """The run_id of the run."""
        return self.spec.run_id


def recorded_run(store: Store, run_id: str, members: Sequence[Member] = ()) -> TrackedRun:
    """Return a run as its records describe it, with the status FINISHED. Damaged records are ignored."""
    result = TrainingResult()
    with contextlib.suppress(UserError):
        result = store.result(run_id) or result
    spec = result.spec or spec_of(store, run_id, forgiving=True) or RunSpec(run_id, {}, {})
    source = result.imported
    if source is None:
        return TrackedRun(spec, "FINISHED", tuple(members))
    where = f"{source.kind}: {source.source}"
    return TrackedRun(spec, "FINISHED", tuple(members), imported=where, imported_t=source.t or 0.0)
