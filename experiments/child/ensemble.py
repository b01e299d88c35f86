"""An attempt at an ensemble: in place of training, its members are found and summed up."""

from collections.abc import Sequence
from pathlib import Path

from experiments.errors import UserError
from experiments.identity import members_in
from experiments.store import ensembles, provenance
from experiments.store.layout import Store
from experiments.store.results import FILE, TrainingResult
from experiments.store.sealed import write_json
from experiments.store.spec import AttemptSpec


def open_members(spec: AttemptSpec, store: Store) -> list[ensembles.Member]:
    """The members of the ensemble that the spec names; [] for a training. Raises UserError for a missing one.

    Where the ensemble is recorded already, its members must have the same weights still.
    """
    found = ensembles.members(store, members_in(spec.inputs))
    recorded = None if spec.train or not found else store.result(spec.run_id)
    if recorded is not None and (other := ensembles.changed(store, recorded)):
        raise UserError(
            f"The run {other[0].run_id}, a member of this ensemble, was trained again with other weights since the "
            "ensemble was evaluated. `ablations run … --stale rerun` evaluates it again."
        )
    return found


def write_result(spec: AttemptSpec, folder: Path, found: Sequence[ensembles.Member]) -> int | None:
    """Write the ensemble's record to the attempt's folder; returns the steps of each training, if they agree."""
    result = TrainingResult(
        run_id=spec.run_id,
        attempt=spec.attempt,
        task=spec.task,
        config=dict(spec.config),
        inputs=dict(spec.inputs),
        command=provenance.host()["command"],
        **ensembles.together(found),
    )
    write_json(folder / FILE, result.content)
    return result.step
