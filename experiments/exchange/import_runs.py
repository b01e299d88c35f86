"""Import finished runs from one store into another. Equal run_ids identify equal runs.

This module does not import torch.
"""

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.exchange.redaction import ANYONE
from experiments.store.durable import whole_folder, write_bytes
from experiments.store.layout import CONFIG, LOG, ROWS, Store, folders_in, keep_row, rows_of
from experiments.store.results import RESULT_FILE, TrainingResult
from experiments.store.run_names import COUNTED

# Files of an attempt that are exchanged. Final weights are exchanged only on request. Checkpoints and specs are never
# exchanged.
KEPT = ("events.jsonl", LOG, RESULT_FILE, "uncommitted.diff")
WEIGHTS = "final"


class Taken(NamedTuple):
    """The outcome of the import of one run."""

    run_id: str
    how: str  # "taken", "had" (the target has the same training), or "other" (the target has other results)
    evaluations: int = 0  # number of evaluations imported


def files_of(store: Store, run_id: str, eval_ids: Iterable[str] | None = None, weights: bool = False) -> list[Path]:
    """Return the sorted paths of the files of a finished run, relative to the store; [] if it is not finished.

    eval_ids: the evaluations to include; None includes all. weights: include the final weights.
    """
    result = store.result(run_id)
    if result is None:
        return []
    home, attempt = store.run_folder(run_id), store.attempt_folder(run_id, result.attempt)
    evaluations = home / "evaluations"
    ids = folders_in(evaluations) if eval_ids is None else list(eval_ids)
    found = [home / "config.json", home / RESULT_FILE, *(attempt / name for name in KEPT)]
    for eval_id in ids:
        found += (evaluations / eval_id).glob("*")
    if weights:
        found += (attempt / WEIGHTS).rglob("*")
    return sorted(path.relative_to(store.root) for path in found if _is_inside(path, store))


def _is_inside(path: Path, store: Store) -> bool:
    """Return whether a path is a file of this store. Raises UserError for a link that leads out of the store.

    A store from somebody else could contain links to private files of this user, which would then be exported.
    """
    if not path.is_file():
        return False
    if not path.resolve().is_relative_to(store.root.resolve()):
        raise UserError(
            f"{path} is a link, or is in a linked folder, that leads out of the store {store.root}. Such files are not "
            "exported or imported. Replace the link by a copy if the file belongs to the store."
        )
    return True


def import_runs(source: Store, target: Store, run_ids: Iterable[str]) -> Iterator[Taken]:
    """Copy the runs and evaluations that `target` lacks. The caller must hold the coordinator's lock of the target."""
    for run_id in run_ids:
        theirs, ours = source.result(run_id), target.result(run_id)
        if theirs is None:
            continue
        if ours is not None and _training(ours) != _training(theirs):
            yield Taken(run_id, "other")
            continue
        with explain_os_errors(f"copy runs into the store {target.root}"):
            attempt = ours.attempt if ours else _copy_training(source, target, run_id, theirs)
            count = sum(
                _copy_evaluation(source, target, run_id, eval_id, attempt)
                for eval_id in folders_in(source.run_folder(run_id) / "evaluations")
            )
            if ours is None:  # written last, because this marks the run as finished
                theirs.write(target.run_folder(run_id) / RESULT_FILE, attempt=attempt)
        yield Taken(run_id, "taken" if ours is None else "had", count)


def _training(result: TrainingResult) -> dict[str, Any]:
    """Return the fields of a result that are equal in all records of one training.

    The attempt number and all fields that a bundle redacts are left out. Settings are left out because the run_id
    covers them, and because the path of a corpus may differ.
    """
    numbers = {name: value for name, value in result.content.items() if name not in ("attempt", "config")}
    return ANYONE.without_fields(numbers)


def _copy_training(source: Store, target: Store, run_id: str, result: TrainingResult) -> int:
    """Copy the finished attempt and return its number. An attempt that a killed import copied is not copied again."""
    origin, home = source.attempt_folder(run_id, result.attempt), target.run_folder(run_id)
    home.mkdir(parents=True, exist_ok=True)
    for name in (CONFIG, COUNTED):
        if _is_inside(source.run_folder(run_id) / name, source) and not (home / name).exists():
            write_bytes(home / name, (source.run_folder(run_id) / name).read_bytes())
    if _is_inside(source.run_folder(run_id) / ROWS, source):
        for row in rows_of(source, run_id):  # rows of the run that the target has already are kept
            keep_row(target, run_id, row)
    for number in target.attempts(run_id):
        with contextlib.suppress(Damaged):
            copied = TrainingResult.load(target.attempt_folder(run_id, number) / RESULT_FILE)
            if copied is not None and _training(copied) == _training(result):
                return number
    number = max(target.attempts(run_id), default=0) + 1
    with whole_folder(target.attempt_folder(run_id, number)) as folder:
        for path in (*(origin / name for name in KEPT), *(origin / WEIGHTS).rglob("*")):
            if _is_inside(path, source):
                (folder / path.relative_to(origin)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, folder / path.relative_to(origin))
        result.write(folder / RESULT_FILE, attempt=number)
    return number


def _copy_evaluation(source: Store, target: Store, run_id: str, eval_id: str, attempt: int) -> bool:
    made, place = source.evaluation(run_id, eval_id), target.evaluation_folder(run_id, eval_id)
    if made is None or place.exists():
        return False
    with whole_folder(place) as beside:
        for path in source.evaluation_folder(run_id, eval_id).iterdir():
            if _is_inside(path, source):
                shutil.copyfile(path, beside / path.name)
        made.write(beside / RESULT_FILE, attempt=attempt, weights_attempt=attempt)
    return True


def runs_in(store: Store) -> list[str]:
    """Return the sorted run_ids of the finished runs in a store."""
    return [name for name in folders_in(store.runs) if TrainingResult.load(store.runs / name / RESULT_FILE) is not None]
