"""Rebuild MLflow's database from the store, and write the runs that are missing in it."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from experiments.errors import Damaged, DiskFull, UserError, explain_os_errors
from experiments.events.event_log import Tail
from experiments.jobs.coordinator.background import Background
from experiments.jobs.coordinator.reporter import STATUS, tracked_run
from experiments.jobs.queue.job import Member, State
from experiments.jobs.queue.queue import Queue
from experiments.store.durable import folder_beside, remove_folder
from experiments.store.layout import Store
from experiments.store.results import RESULT_FILE
from experiments.store.tracked_run import TrackedRun, recorded_run
from experiments.tracking.mlflow import Tracker
from experiments.tracking.record import content
from experiments.tracking.written import file_of, is_unknown, written

log = logging.getLogger(__name__)


def rebuild(store: Store, runs: Iterable[TrackedRun]) -> list[str]:
    """Write the MLflow database again from the store's events and results. The caller holds the coordinator's lock.

    A new database is filled and then replaces the old one. Returns a line for each run that could not be written. All
    other runs are written.
    """
    problems = []
    with (
        explain_os_errors(f"write {store.mlflow_db} anew"),
        folder_beside(store.state_dir, ".mlflow-") as state,
        folder_beside(store.root, ".mlflow-") as files,
    ):
        tracker = Tracker(store, database=state / store.mlflow_db.name, artifacts=files)
        for run in runs:
            try:
                tracker.sync(run)
            except (MemoryError, DiskFull):
                raise
            except Exception as error:
                problems.append(f"{run.run_id}: {error}")
        tracker.close()
        file_of(store.mlflow_db).unlink(missing_ok=True)  # removed first, so that a kill leaves no wrong list
        for suffix in ("", "-wal", "-shm", "-journal"):
            store.mlflow_db.with_name(store.mlflow_db.name + suffix).unlink(missing_ok=True)
        (state / store.mlflow_db.name).replace(store.mlflow_db)
        if file_of(state / store.mlflow_db.name).exists():
            file_of(state / store.mlflow_db.name).replace(file_of(store.mlflow_db))
        remove_folder(store.artifacts)
        files.rename(store.artifacts)
    return problems


def lacking(store: Store) -> dict[str, bool]:
    """Return the finished runs that are missing in MLflow (value False) or out of date there (value True).

    A run is missing if an import or a coordinator was killed before it wrote the run. A run is out of date if its rows,
    result or scores have changed since MLflow was written. Runs that the user deleted in MLflow do not count as
    missing. This function does not import MLflow (see written.py). For a database of version 0.1.0, it returns {} until
    `recognise` has read the database.
    """
    if is_unknown(store.mlflow_db):
        return {}
    with Queue(store.queue_db, create=False) as queue:
        busy = {row.run_id for row in queue.status() if not row.state.ended}
    finished = [r for r in store.run_ids() if r not in busy and (store.run_folder(r) / RESULT_FILE).is_file()]
    shown = written(store.mlflow_db)
    missing = [run_id for run_id in finished if shown.get(run_id) != content(store, run_id)]
    # Leave out runs whose result is damaged.
    whole = [run_id for run_id in missing if _state(store, run_id, failed=False) is State.FINISHED]
    return {run_id: run_id in shown for run_id in whole}


def recognise(store: Store) -> None:
    """Create the list of runs in a database that version 0.1.0 wrote. The caller holds the coordinator's lock."""
    if is_unknown(store.mlflow_db):
        Tracker(store).recognise()


def write_lacking(store: Store) -> int:
    """Write the finished runs that MLflow lacks, and return their number. The caller holds the coordinator's lock.

    Errors are logged and not raised. The next call writes the remaining runs.
    """
    background = Background(lambda: Tracker(store))
    try:
        recognise(store)
        for run_id in lacking(store):
            background.track(recorded_run(store, run_id))
    except UserError as error:
        log.warning("%s", error)
    background.close()
    return len(background.synced())


def tracked_runs(store: Store) -> Iterator[TrackedRun]:
    """Yield the runs that have begun, in the order of their starts, then the runs that ended without a start."""
    with Queue(store.queue_db, create=False) as queue:
        queued = {row.run_id: row for row in queue.status()}
        begun = [run_id for _, run_id in sorted((began, run_id) for run_id, began in _begun(store))]
        never = [run_id for run_id, row in queued.items() if row.state.ended]
        for run_id in dict.fromkeys([*begun, *never]):
            row = queued.get(run_id)
            try:
                job = queue.job(run_id).job if row is not None else None
            except Damaged:
                job = None
            if row is not None and job is not None:
                yield tracked_run(job, row.state, row.error)
            else:
                yield _from_folder(store, run_id)


def _begun(store: Store) -> Iterator[tuple[str, float]]:
    for run_id in store.run_ids():
        for number in store.attempts(run_id):
            first = next(Tail(store.attempt_folder(run_id, number)).read(), None)
            if first is not None:
                yield run_id, first["t"]
                break
        else:
            if (run := recorded_run(store, run_id)).imported:
                yield run_id, run.imported_t


def _from_folder(store: Store, run_id: str) -> TrackedRun:
    """Return a run that is not in the queue, from the files in its folder. Damaged files are ignored."""
    members: dict[Member, None] = {}
    last: dict[str, Any] = {"kind": ""}
    for number in store.attempts(run_id):
        for event in Tail(store.attempt_folder(run_id, number)).read():
            last = event
            if event["kind"] == "started":
                members |= dict.fromkeys(Member(*member) for member in event.get("members", ()))
    failed = last["kind"] == "failed"
    status = STATUS[_state(store, run_id, failed=failed)]
    return replace(recorded_run(store, run_id, tuple(members)), status=status, error=last["message"] if failed else "")


def _state(store: Store, run_id: str, *, failed: bool) -> State:
    try:
        finished = store.result(run_id) is not None
    except UserError:
        finished = False
    return State.FINISHED if finished else State.FAILED if failed else State.CANCELLED
