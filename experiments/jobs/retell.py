"""Every run of a store as the tracking store should know it: from the queue, or else from its folder."""

from collections.abc import Iterator
from typing import Any

from experiments.errors import Damaged
from experiments.events import read_events
from experiments.jobs.job import Job, Member
from experiments.jobs.queue import Queue
from experiments.jobs.reporter import tracked_run
from experiments.jobs.states import State
from experiments.store import Store, read_json
from experiments.tracked import TrackedRun


def retell(store: Store) -> Iterator[TrackedRun]:
    """The runs that were attempted, in the order in which they began."""
    queue = Queue(store.queue_db, create=False)
    try:
        queued = {row.run_id: row for row in queue.status()}
        begun = sorted((began, run_id) for run_id, began in _begun(store))
        for _, run_id in begun:
            row = queued.get(run_id)
            try:
                job = queue.job(run_id).job if row is not None else None
            except Damaged:
                job = None
            if row is not None and job is not None:
                yield tracked_run(job, row.state, row.error)
            else:
                yield from _from_folder(store, run_id)
    finally:
        queue.close()


def _begun(store: Store) -> Iterator[tuple[str, float]]:
    for home in store.runs.glob("*"):
        numbers = store.attempts(home.name)
        events = read_events(store.attempt_folder(home.name, numbers[0])) if numbers else []
        if events:
            yield home.name, float(events[0]["t"])


def _from_folder(store: Store, run_id: str) -> Iterator[TrackedRun]:
    described = read_json(store.run_folder(run_id) / "config.json")
    if described is None:
        return
    events = [e for n in store.attempts(run_id) for e in read_events(store.attempt_folder(run_id, n))]
    members = [Member(*m) for e in events if e["kind"] == "started" for m in e.get("members", ())]
    config: dict[str, Any] = described["config"]
    job = Job(
        run_id,
        str(config.get("task", "")),
        config,
        seed=int(config.get("seed", 1)),
        inputs=described.get("inputs", {}),
        members=tuple(dict.fromkeys(members)),
    )
    last = events[-1]["kind"] if events else ""
    state = State.FINISHED if store.result(run_id) else State.FAILED if last == "failed" else State.CANCELLED
    yield tracked_run(job, state, str(events[-1].get("message", "")) if last == "failed" else "")
