"""The records that a report accepts: undamaged, of the planned run, and in agreement with their own files.

Others are left out of the table, and `harm` names the file and what to do. Metrics whose column has counts are computed
again from these; a perplexity has no counts to compare it with.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from ablations.plan.planned import PlannedEvaluation, PlannedRun
from experiments.config import flatten
from experiments.errors import Damaged
from experiments.identity import identity_settings
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.store.sealed import check_file
from experiments.tasks.columns import Column
from reports.results.recomputed import differs, recomputed

REDO = "Restore it from a backup, or delete that folder and run the study again"


class Results(Protocol):
    """What is read of a store (experiments/store/layout.py): two look-ups by identity."""

    def result(self, run_id: str) -> TrainingResult | None:
        """The record of a valid training; None if there is none. Raises Damaged."""

    def evaluation(self, run_id: str, eval_id: str) -> EvaluationResult | None:
        """The record of a valid evaluation; None if there is none. Raises Damaged."""


def sound_result(store: Results, run: PlannedRun) -> tuple[TrainingResult | None, str]:
    """The record of a run's training, and the reason why it is left out; "" for none."""
    place = f"runs/{run.run_id}"
    try:
        record = store.result(run.run_id)
        if any(store.result(member) is None for member in run.members):
            return None, ""  # a note names it (reports/table/ensembles.py)
    except Damaged as damage:
        return None, _within_store(str(damage), store)
    if record is None:
        return None, ""
    if record.inputs not in (None, run.inputs):
        return None, f"{place}/result.json is of a training on other data. {REDO}."
    theirs = dict(flatten(record.config or {}))
    for name, value in (identity_settings(run.config) | {"seed": run.config.seed}).items():
        if name in theirs and theirs[name] != value:  # a missing one was added later
            return None, (
                f"{place}/result.json is of a training with {name} = {theirs[name]}, and the plan has {value}. Delete "
                f"{place} to train it again"
                f"{', or undo the change of that default' if name not in run.overrides else ''}."
            )
    return record, ""


def sound_evaluation(
    store: Results, run: PlannedRun, planned: PlannedEvaluation, columns: Iterable[Column] = ()
) -> tuple[EvaluationResult | None, str]:
    """The same for one of its evaluations; recorded scores of `columns` must agree with their counts."""
    place = f"runs/{run.run_id}/evaluations/{planned.eval_id}"
    try:
        record = store.evaluation(run.run_id, planned.eval_id)
        if record is None:
            return None, ""
        asked: dict[str, object] = {"settings": dict(planned.spec.settings), "inputs": dict(planned.spec.inputs)}
        if "set" not in planned.spec.inputs:  # else a set is its content, whatever its name is here and was there
            asked = {"set": planned.spec.set, **asked}
        other = [name for name, value in asked.items() if getattr(record, name) not in (None, value)]
        if other:
            return None, f"{place}/result.json has other {' and '.join(other)} than the plan. {REDO}."
        if folder_of := getattr(store, "evaluation_folder", None):
            _check_files(folder_of(run.run_id, planned.eval_id), record, columns)
    except Damaged as damage:
        text = _within_store(str(damage), store)
        return None, text if place in text else f"{place}: {text}. {REDO}."
    return record, ""


def _within_store(text: str, store: Results) -> str:
    root = getattr(store, "root", None)
    return text.replace(f"{root}/", "") if root else text


def _check_files(folder: Path, record: EvaluationResult, columns: Iterable[Column]) -> None:
    """Raises Damaged for a changed file, and for a metric that contradicts its counts."""
    for name, written in record.files.items():
        check_file(folder / Path(name).name, written)
    for column in {column.metric: column for column in columns if column.metric in record.metrics}.values():
        computed, value = recomputed(column, folder, record), record.metrics[column.metric]
        if computed is not None and differs(value, computed):
            raise Damaged(f"result.json says {column.metric} = {value}, and the counts beside it give {computed}")
