"""All runs of a store, as MLflow should show them: from the queue, or else from their folders."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from experiments.errors import Damaged, DiskFull, UserError, explain_os_errors
from experiments.events.event_log import Tail
from experiments.jobs.coordinator.reporter import tracked_run
from experiments.jobs.queue.job import Job, Member
from experiments.jobs.queue.queue import Queue
from experiments.jobs.queue.states import State
from experiments.records import TrackedRun
from experiments.store.description import description_of
from experiments.store.durable import folder_beside, remove_folder
from experiments.store.layout import Store
from experiments.store.results import TrainingResult
from experiments.tracking.mlflow import Tracker
from experiments.tracking.record import imported, recorded_members


def rebuild(store: Store, runs: Iterable[TrackedRun]) -> list[str]:
    """Write the MLflow database again from the store's events and results. The caller holds the coordinator's lock.

    A new database is filled and then replaces the old one. Returns a line for each run that could not be written; all
    others are written.
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
        for suffix in ("", "-wal", "-shm", "-journal"):
            store.mlflow_db.with_name(store.mlflow_db.name + suffix).unlink(missing_ok=True)
        (state / store.mlflow_db.name).replace(store.mlflow_db)
        remove_folder(store.artifacts)
        files.rename(store.artifacts)
    return problems


def tracked_runs(store: Store) -> Iterator[TrackedRun]:
    """The attempted runs in the order of their starts, then runs that ended without a start."""
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
            if told := _result(store, run_id).imported:
                yield run_id, told.t or 0.0


def _from_folder(store: Store, run_id: str) -> TrackedRun:
    """A run that is not in the queue, described by its folder; damaged parts are left out."""
    described = description_of(store, run_id, forgiving=True)
    members = dict.fromkeys(Member(*member) for member in recorded_members(described))
    last: dict[str, Any] = {"kind": ""}
    for number in store.attempts(run_id):
        for event in Tail(store.attempt_folder(run_id, number)).read():
            last = event
            if event["kind"] == "started":
                members |= dict.fromkeys(Member(*member) for member in event.get("members", ()))
    config: dict[str, Any] = described.get("config") or {}
    seed = config.get("seed", 1)
    job = Job(
        run_id,
        str(config.get("task", "")),
        config,
        seed=seed if isinstance(seed, int) else 1,
        inputs=described.get("inputs") or {},
        members=tuple(members),
    )
    failed = last["kind"] == "failed"
    found = tracked_run(job, _state(store, run_id, failed), last["message"] if failed else "")
    return replace(found, **imported(_result(store, run_id)))


def _result(store: Store, run_id: str) -> TrainingResult:
    try:
        return store.result(run_id) or TrainingResult()
    except UserError:
        return TrainingResult()


def _state(store: Store, run_id: str, failed: bool) -> State:
    try:
        finished = store.result(run_id) is not None
    except UserError:
        finished = False
    return State.FINISHED if finished else State.FAILED if failed else State.CANCELLED
