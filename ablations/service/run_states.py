"""The state of a planned run: what the store holds, else where the queue has it."""

from ablations.plan.plan import StateOf
from experiments.errors import Damaged
from experiments.jobs.queue.queue import Queue
from experiments.store import provenance
from experiments.store.layout import Store
from experiments.tasks.base import Task


def run_states(store: Store, task: Task) -> StateOf:
    """A look-up for `plan_study`: missing, waiting, running, finished, failed, stale or damaged."""
    queued, asked_of_failed = _queue_states(store)
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
            lacking = {eval_id for eval_id, made in zip(eval_ids, evaluations, strict=True) if made is None}
            tried = result is None or lacking & asked_of_failed.get(run_id, set())
            return "failed" if in_queue == "failed" and tried else "missing"
        current = result["code_digest"] == training and all(e["code_digest"] == scoring for e in evaluations if e)
        return "finished" if current else "stale"

    return state_of


def _queue_states(store: Store) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The state of each run in the queue; of those that failed, the evaluations that were asked for."""
    if not store.queue_db.exists():
        return {}, {}
    queue = Queue(store.queue_db, create=False)
    try:
        return {row.run_id: row.state.value for row in queue.status()}, queue.asked_of_failed()
    finally:
        queue.close()
