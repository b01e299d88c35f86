"""The state of a planned run: from the store, or else from the queue."""

from collections.abc import Mapping

from ablations.plan.plan import RunState, StateOf
from experiments.errors import Damaged
from experiments.jobs.queue.queue import Queue
from experiments.records import TRAINING
from experiments.store.code import code_digests
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult
from experiments.tasks.base import Task


def run_states(store: Store, task: Task) -> StateOf:
    """A look-up of states for `plan_study`."""
    queued, asked_of_failed = _queue_states(store)
    parts = code_digests({TRAINING: task.training_code, **task.evaluation_code})
    training = parts.pop(TRAINING)

    def state_of(run_id: str, eval_ids: list[str]) -> RunState:
        in_queue = queued.get(run_id)
        if in_queue in ("waiting", "running"):
            return RunState(in_queue)
        try:
            result = store.result(run_id)
            evaluations = [store.evaluation(run_id, eval_id) for eval_id in eval_ids]
        except Damaged:
            return RunState("damaged")
        if result is None or None in evaluations:
            lacking = {eval_id for eval_id, made in zip(eval_ids, evaluations, strict=True) if made is None}
            tried = result is None or lacking & asked_of_failed.get(run_id, set())
            return RunState("failed" if in_queue == "failed" and tried else "missing")
        old = {part for made in evaluations if made for part in stale_parts(made, parts)}
        stale = [TRAINING] * (result.code_digest != training) + [part for part in parts if part in old]
        return RunState("stale", tuple(stale)) if stale else RunState("finished")

    return state_of


def stale_parts(made: EvaluationResult, code: Mapping[str, str]) -> list[str]:
    """The parts of an evaluation that were made by other code than the present one.

    code: the digest of each part, in the order of the parts. Records of earlier versions have no parts: all are stale.
    """
    made_by = made.code
    return [part for part, digest in code.items() if made_by.get(part) != digest]


def _queue_states(store: Store) -> tuple[dict[str, str], dict[str, set[str]]]:
    """The state of each run in the queue; of those that failed, the evaluations that were requested."""
    if not store.queue_db.exists():
        return {}, {}
    with Queue(store.queue_db, create=False) as queue:
        return {row.run_id: row.state.value for row in queue.status()}, queue.asked_of_failed()
