"""The state of a planned run: what the store holds, else where the queue has it."""

from ablations.plan import StateOf
from experiments import provenance
from experiments.errors import Damaged
from experiments.jobs.queue import Queue
from experiments.store import Store
from experiments.tasks.base import Task


def run_states(store: Store, task: Task) -> StateOf:
    """A look-up for `plan_study`: missing, waiting, running, finished, failed, stale or damaged."""
    queued = _queue_states(store)
    training, scoring = provenance.code_digest(task.training_code), provenance.code_digest(task.evaluation_code)

    def state_of(run_id: str, eval_ids: list[str]) -> str:
        in_queue = queued.get(run_id)
        if in_queue in ("waiting", "running"):
            return in_queue
        try:
            result = store.result(run_id)
            evaluations = [store.evaluation(run_id, eval_id) for eval_id in eval_ids]
        except Damaged:
            return "damaged"
        if result is None or None in evaluations:
            return "failed" if in_queue == "failed" else "missing"
        current = result["code_digest"] == training and all(e["code_digest"] == scoring for e in evaluations if e)
        return "finished" if current else "stale"

    return state_of


def _queue_states(store: Store) -> dict[str, str]:
    if not store.queue_db.exists():
        return {}
    queue = Queue(store.queue_db, create=False)
    try:
        return {row.run_id: row.state.value for row in queue.status()}
    finally:
        queue.close()
