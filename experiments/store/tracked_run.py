"""A run as a tracking store shows it, besides its events and results."""

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
    """A run, its state and its tables."""

    spec: RunSpec
    status: str  # RUNNING, FINISHED, FAILED, KILLED
    members: tuple[Member, ...] = ()
    error: str = ""
    imported: str = ""  # from where, for a run that was trained elsewhere
    imported_t: float = 0.0  # and when

    @property
    def run_id(self) -> str:
        """The run's identity."""
        return self.spec.run_id


def recorded_run(store: Store, run_id: str, members: Sequence[Member] = ()) -> TrackedRun:
    """Return a run from its records, as a finished one; damaged records are left out."""
    result = TrainingResult()
    with contextlib.suppress(UserError):
        result = store.result(run_id) or result
    spec = result.spec or spec_of(store, run_id, forgiving=True) or RunSpec(run_id, {}, {})
    source = result.imported
    if source is None:
        return TrackedRun(spec, "FINISHED", tuple(members))
    where = f"{source.kind}: {source.source}"
    return TrackedRun(spec, "FINISHED", tuple(members), imported=where, imported_t=source.t or 0.0)
