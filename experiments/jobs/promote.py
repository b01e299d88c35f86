"""From an attempt's folder to the run's: the one place where a result becomes valid.

A child writes only into its attempt's folder; what is whole there (`result.json`, an evaluation's folder with a
`result.json`) is taken over by renames. Every step can be repeated: a coordinator that died in between leaves the
rest to the next one. Files whose JSON is torn or damaged count as not written.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from experiments.errors import Damaged
from experiments.jobs.job import Job
from experiments.store import Store, fsync_folder, read_json, remove_folder, write_json

RESULT = "result.json"
TRAINING = "training"  # the part's name, beside the eval_ids


def promote(store: Store, run_id: str, attempt: int) -> list[str]:
    """Take over what attempt `attempt` has completed; returns the parts. A result of a later attempt stays."""
    folder = store.attempt_folder(run_id, attempt)
    trained, result = _whole(folder / RESULT), store.result(run_id)
    parts = []
    if trained is not None and (result is None or int(result["attempt"]) < attempt):
        for eval_id in _evaluations(store.run_folder(run_id)):
            _demote(store, run_id, eval_id)  # scores of the weights that this result replaces
        result = trained
        _put(folder / RESULT, store.run_folder(run_id) / RESULT, result)
        parts.append(TRAINING)
    if result is None or (trained is not None and int(result["attempt"]) != attempt):
        return parts  # an attempt that came too late: its scores are of weights that do not count
    for eval_id in _evaluations(folder):
        if _take_evaluation(store, run_id, attempt, eval_id, int(result["attempt"])):
            parts.append(eval_id)
    return parts


def _put(made: Path, place: Path, result: dict[str, Any]) -> None:
    """The child's own file under a second name: its bytes are on the disk already, so that nobody waits for it again.

    A power cut may take the name away; `leftover` gives it back. Where a disk knows no hard links it is written anew.
    """
    temporary = place.with_name(f".{place.name}.link")
    temporary.unlink(missing_ok=True)
    try:
        temporary.hardlink_to(made)
    except OSError:
        write_json(place, result)
    else:
        temporary.replace(place)


def _take_evaluation(store: Store, run_id: str, attempt: int, eval_id: str, weights: int) -> bool:
    source = store.attempt_folder(run_id, attempt) / "evaluations" / eval_id
    target = store.evaluation_folder(run_id, eval_id)
    made = _whole(source / RESULT)
    if made is None or _whole(target / RESULT) is not None:  # the first one counts
        return False
    if made.get("weights_attempt", weights) != weights:  # demoted here, or made of weights since replaced
        return False
    store.write_json(source / RESULT, {**made, "attempt": attempt, "weights_attempt": weights})
    target.parent.mkdir(exist_ok=True)
    _sync(source)
    remove_folder(target)  # where its record is gone
    source.rename(target)
    fsync_folder(target.parent)
    return True


def _sync(folder: Path) -> None:
    for path in filter(Path.is_file, folder.rglob("*")):
        with path.open("rb") as file:
            os.fsync(file.fileno())
    fsync_folder(folder)


def _demote(store: Store, run_id: str, eval_id: str) -> None:
    """Back to the folder of the attempt that made it: kept, and out of every table."""
    made = _whole(store.evaluation_folder(run_id, eval_id) / RESULT)
    if made is None:
        return  # damaged: the first new one takes its place
    home = store.attempt_folder(run_id, int(made["attempt"])) / "evaluations"
    home.mkdir(parents=True, exist_ok=True)
    if (home / eval_id).exists():
        remove_folder(home / eval_id)
    store.evaluation_folder(run_id, eval_id).rename(home / eval_id)


def missing(store: Store, job: Job) -> list[str]:
    """The parts that a job still wants: TRAINING, eval_ids."""
    result = store.result(job.run_id)
    if result is None or int(result["attempt"]) <= job.rerun_after:
        return [TRAINING] * job.train + [item["eval_id"] for item in job.evaluations]
    return [item["eval_id"] for item in job.evaluations if store.evaluation(job.run_id, item["eval_id"]) is None]


def leftover(store: Store, job: Job, code_digest: str) -> list[str]:
    """Take over an earlier attempt that trained to the end, with today's code, and was not taken over yet.

    So that a lost queue costs no training. Attempts up to `job.rerun_after` are stale.
    """
    for attempt in reversed(store.attempts(job.run_id)):
        trained = _whole(store.attempt_folder(job.run_id, attempt) / RESULT)
        if attempt > job.rerun_after and trained and trained.get("code_digest", "") == code_digest:
            return promote(store, job.run_id, attempt)
    return []


def _evaluations(folder: Path) -> Iterator[str]:
    home = folder / "evaluations"
    names = [p.name for p in home.iterdir() if p.is_dir()] if home.is_dir() else []
    return iter(sorted(names))


def _whole(path: Path) -> dict[str, Any] | None:
    try:
        return read_json(path)
    except Damaged:
        return None
