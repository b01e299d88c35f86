"""Look up the states of planned runs in the store and the queue, and the tables that runs belong to."""

from collections.abc import Mapping

from ablations.planning.plan import PlannedRun, StateOf
from experiments.errors import Damaged
from experiments.identity import ParentRun
from experiments.jobs.attempts.liveness import observed
from experiments.jobs.queue.job import JobStatus, Member
from experiments.jobs.queue.queue import Queue
from experiments.records import TRAINING
from experiments.run_spec import TrainerSpec
from experiments.run_state import RunState
from experiments.store.ensembles import changed
from experiments.store.layout import Store, rows_of
from experiments.store.results import EvaluationResult
from experiments.tasks.base import Task
from experiments.training.warm_start import checkpoint_of, other_weights

DONE = ("finished", "stale")
UNFINISHED = ("waiting", "running", "interrupted")  # states of runs that the queue has and that have not ended


def lacks_checkpoints(run: PlannedRun, store: Store, task: Task) -> bool:
    """Return whether a finished training kept too few checkpoints for a requested average, best step or branch."""
    weights = store.weights_folder(run.run_id)
    if weights is None or run.spec.members:
        return False
    lacking = [e for e in run.evaluations if store.evaluation(run.run_id, e.eval_id) is None]
    if not all(task.serves(spec, weights) for spec in (*lacking, *run.read_by)):
        return True
    # A branch may begin only with a checkpoint that the present code made.
    code = task.training_code(store.root) if run.read_at else ""
    return any(checkpoint_of(store, ParentRun(run.run_id, step), code) is None for step in run.read_at)


def run_states(store: Store, task: Task) -> StateOf:
    """Return the function that `plan_study` calls for the state of a run."""
    with Queue(store.queue_db, create=False) as queue:
        queued = {row.run_id: row.state.value for row in observed(store, queue, queue.status())}
        asked_of_failed = queue.asked_of_failed()  # failed run → its requested evaluations
    parts = task.code
    first = "decode" if "decode" in parts else "score"

    def state_of(run_id: str, eval_ids: list[str], trainer: TrainerSpec) -> RunState:
        in_queue = queued.get(run_id)
        try:
            result = store.result(run_id)
            evaluations = [store.evaluation(run_id, eval_id) for eval_id in eval_ids]
        except Damaged:
            return RunState(in_queue if in_queue in UNFINISHED else "damaged")
        made = tuple(eval_id for eval_id, found in zip(eval_ids, evaluations, strict=True) if found is not None)
        lacking = set(eval_ids).difference(made)
        to_make = first if result is not None and lacking else ""
        to_read = tuple(found.eval_id for found in evaluations if found is not None and task.outdated(found))
        if in_queue in UNFINISHED:
            return RunState(in_queue, to_make=to_make, made=made, to_read=to_read)
        if result is not None and any(store.result(member.run_id) is None for member in result.ensemble):
            return RunState("missing")
        if result is not None and result.imported is not None:  # an imported run may lack an evaluation
            return RunState("finished")
        if result is None:
            return RunState("failed" if in_queue == "failed" else "missing")
        old = {part for found in evaluations if found for part in stale_parts(found, parts)}
        files = task.with_trainer(trainer).changed_code(result, store.root)
        other = bool(files) or bool(changed(store, result)) or other_weights(store, result)
        stale = (*[TRAINING] * other, *(part for part in parts if part in old))
        word = "stale" if stale else "finished"
        if lacking:
            word = "failed" if in_queue == "failed" and lacking & asked_of_failed.get(run_id, set()) else "missing"
        return RunState(word, stale, to_make, made if lacking else (), to_read, tuple(files))

    return state_of


def stale_parts(made: EvaluationResult, code: Mapping[str, str]) -> list[str]:
    """Return the parts of an evaluation that other code than the present code made.

    code: the digest of each part of the present code, in the order of the parts.
    """
    return [part for part, digest in code.items() if made.code.get(part) != digest]


class Members:
    """A look-up of the tables that runs belong to. It reads the queue once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        with Queue(store.queue_db, create=False) as queue:
            self.queued: dict[str, JobStatus] = {row.run_id: row for row in observed(store, queue, queue.status())}
            self._recorded = queue.members()

    def of(self, run_id: str) -> tuple[Member, ...]:
        """Return every table that the run belongs to."""
        of_rows = (Member(*row.member) for row in rows_of(self._store, run_id))
        return tuple(dict.fromkeys([*self._recorded.get(run_id, ()), *of_rows]))
