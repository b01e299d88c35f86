"""Move results from an attempt's folder to the run's folder. Only this module makes a result valid.

A child writes into its attempt's folder. Complete parts (`result.json`, or an evaluation's folder with a `result.json`)
are moved by hard links and renaming. Every step can be repeated. If a coordinator dies during a move, the next
coordinator completes it. A file with damaged JSON counts as not written.
"""

from pathlib import Path
from typing import NamedTuple, TypeVar

from experiments.errors import Damaged
from experiments.jobs.queue.job import Job
from experiments.records import TRAINING
from experiments.run_spec import EvaluationSpec
from experiments.store.checksummed import read_json
from experiments.store.durable import fsync_folder, fsync_tree, remove_folder
from experiments.store.layout import Store, folders_in
from experiments.store.record_base import Record
from experiments.store.results import RESULT_FILE, EvaluationResult, TrainingResult

R = TypeVar("R", bound=Record)


class PublishedRun(NamedTuple):
    parts: list[str]
    replaced: list[EvaluationSpec]  # evaluations of weights that are no longer valid


def publish(store: Store, run_id: str, attempt: int, rerun_after: int = 0) -> PublishedRun:
    """Move the completed parts of attempt `attempt` to the run's folder. A valid result of a later attempt stays valid.

    If the new result replaces an earlier result with bit-identical weights, the earlier evaluations stay valid. Results
    of attempts up to `rerun_after` are stale, and so are their evaluations.
    """
    folder = store.attempt_folder(run_id, attempt)
    trained, result = _whole(TrainingResult, folder), store.result(run_id)
    parts, replaced = [], []
    if trained is not None and (result is None or result.attempt < attempt):
        before = result.attempt if result else 0
        if before <= rerun_after or not _same_weights(store, run_id, before, attempt):
            made = folders_in(store.run_folder(run_id) / "evaluations")
            scores = [_demote(store, run_id, eval_id) for eval_id in made]
            replaced = [score for score in scores if score]
        result = trained
        _put(folder / RESULT_FILE, store.run_folder(run_id) / RESULT_FILE, result)
        parts.append(TRAINING)
    if result is None or (trained is not None and result.attempt != attempt):
        return PublishedRun(parts, replaced)  # a later attempt is valid, so evaluations of these weights are not
    for eval_id in folders_in(folder / "evaluations"):
        if _take_evaluation(store, run_id, attempt, eval_id, result.attempt):
            parts.append(eval_id)
    return PublishedRun(parts, replaced)


def _same_weights(store: Store, run_id: str, one: int, other: int) -> bool:
    """Return whether two attempts recorded equal hashes of their weights.

    Return False if the hashes of an attempt are missing.
    """
    finals = (store.attempt_folder(run_id, attempt) / "final" / "meta.json" for attempt in (one, other))
    try:
        one_files, other_files = ((read_json(meta) or {}).get("files") for meta in finals)
    except Damaged:
        return False
    return bool(one_files) and one_files == other_files


def _put(made: Path, place: Path, result: TrainingResult) -> None:
    """Create a hard link `place` to the child's file. The content is already on the disk, so no fsync is needed.

    A power cut may lose the link; `leftover` restores it later. If the disk does not support hard links, the file is
    written again.
    """
    temporary = place.with_name(f".{place.name}.link")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(made)
    except OSError:
        result.write(place)
    else:
        temporary.replace(place)


def _take_evaluation(store: Store, run_id: str, attempt: int, eval_id: str, weights: int) -> bool:
    source = store.attempt_folder(run_id, attempt) / "evaluations" / eval_id
    target = store.evaluation_folder(run_id, eval_id)
    made, stands = _whole(EvaluationResult, source), _whole(EvaluationResult, target)
    if made is None or (stands is not None and made.renews != stands.attempt):
        return False  # the existing evaluation stays, unless the new one was made to replace it
    if made.weights_attempt not in (None, weights):  # the evaluation used other weights than the present ones
        return False
    made.write(source / RESULT_FILE, attempt=attempt, weights_attempt=weights)
    target.parent.mkdir(exist_ok=True)
    fsync_tree(source)
    if stands is not None:
        _demote(store, run_id, eval_id)
    remove_folder(target)  # a folder without a readable record may be there
    source.rename(target)
    fsync_folder(target.parent)
    return True


def _demote(store: Store, run_id: str, eval_id: str) -> EvaluationSpec | None:
    """Move an evaluation back to its attempt's folder, which no table reads, and return its spec.

    Return None if the evaluation has no readable record, or if its record does not contain the spec.
    """
    made = _whole(EvaluationResult, store.evaluation_folder(run_id, eval_id))
    if made is None:
        return None  # the evaluation stays in place until a new evaluation replaces it
    home = store.attempt_folder(run_id, made.attempt) / "evaluations"
    home.mkdir(parents=True, exist_ok=True)
    if (home / eval_id).exists():
        remove_folder(home / eval_id)
    store.evaluation_folder(run_id, eval_id).rename(home / eval_id)
    if made.set is None or made.settings is None or made.inputs is None:
        return None
    return EvaluationSpec(made.set, made.settings, made.inputs, eval_id=eval_id)


def missing(store: Store, job: Job) -> list[str]:
    """Return the parts that a job still needs: TRAINING, eval_ids.

    An evaluation in `job.renew` counts as missing until an attempt has made it again.
    """
    result = store.result(job.run_id)
    if result is None or result.attempt <= job.rerun_after:
        return [TRAINING] * job.train + [item.eval_id for item in job.evaluations]
    needed = []
    for item in job.evaluations:
        made, renew = store.evaluation(job.run_id, item.eval_id), job.renew.get(item.eval_id)
        if made is None or (renew is not None and made.attempt <= renew):
            needed.append(item.eval_id)
    return needed


def leftover(store: Store, job: Job) -> PublishedRun:
    """Publish the newest earlier attempt that finished training, whatever code it used.

    In this way, no finished training is lost if the queue is lost. Attempts up to `job.rerun_after` are stale and are
    skipped. If there is no such attempt, publish nothing and return an empty `PublishedRun`.
    """
    for attempt in reversed(store.attempts(job.run_id)):
        trained = _whole(TrainingResult, store.attempt_folder(job.run_id, attempt))
        if attempt > job.rerun_after and trained:
            return publish(store, job.run_id, attempt, job.rerun_after)
    return PublishedRun([], [])


def _whole(kind: type[R], folder: Path) -> R | None:
    try:
        return kind.load(folder / RESULT_FILE)
    except Damaged:
        return None
