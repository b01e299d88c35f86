"""What a report reads of a store: records that are whole, of the run that the plan names, and true to what they keep.

Anything else is left out of the table, and `harm` says which file it was and what to do. BLEU and F1 are computed again
from the counts that were kept per sentence; a perplexity has nothing beside it to be compared with.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ablations.plan import PlannedEvaluation, PlannedRun
from experiments.config import flatten, training_settings
from experiments.errors import Damaged
from experiments.sealed import check_file
from reports.bleu import COUNTS, bleu

if TYPE_CHECKING:
    from numpy.typing import NDArray

Record = Mapping[str, Any]
TOLERANCE = 1e-6  # relative: of sums in another order
REDO = "Restore it from a backup, or delete that folder and run the study again"


class Results(Protocol):
    """What is read of a store (experiments/store.py): two look-ups by identity."""

    def result(self, run_id: str) -> dict[str, Any] | None: ...

    def evaluation(self, run_id: str, eval_id: str) -> dict[str, Any] | None: ...


def sound_result(store: Results, run: PlannedRun) -> tuple[Record | None, str]:
    """The record of a run's training, and why it is left out: "" if it is not."""
    place = f"runs/{run.run_id}"
    try:
        record = store.result(run.run_id)
    except Damaged as damage:
        return None, _within_store(str(damage), store)
    if record is None:
        return None, ""
    if record.get("inputs", run.inputs) != run.inputs:
        return None, f"{place}/result.json is of a training on other data. {REDO}."
    theirs = dict(flatten(record.get("config", {})))
    for name, value in training_settings(run.config).items():
        if name in theirs and theirs[name] != value:  # one that is not there was added since, with a default
            return None, (
                f"{place}/result.json is of a training with {name} = {theirs[name]}, and the plan has {value}. Delete "
                f"{place} to train it again"
                f"{', or undo the change of that default' if name not in run.overrides else ''}."
            )
    return record, ""


def sound_evaluation(store: Results, run: PlannedRun, planned: PlannedEvaluation) -> tuple[Record | None, str]:
    """The same of one of its evaluations."""
    place = f"runs/{run.run_id}/evaluations/{planned.eval_id}"
    try:
        record = store.evaluation(run.run_id, planned.eval_id)
        if record is None:
            return None, ""
        asked = {"set": planned.spec.set, "settings": dict(planned.spec.settings), "inputs": dict(planned.spec.inputs)}
        other = [name for name, value in asked.items() if record.get(name, value) != value]
        if other:
            return None, f"{place}/result.json has other {' and '.join(other)} than the plan. {REDO}."
        if folder_of := getattr(store, "evaluation_folder", None):
            _check_files(folder_of(run.run_id, planned.eval_id), record)
    except Damaged as damage:
        text = _within_store(str(damage), store)
        return None, text if place in text else f"{place}: {text}. {REDO}."
    return record, ""


def _within_store(text: str, store: Results) -> str:
    root = getattr(store, "root", None)
    return text.replace(f"{root}/", "") if root else text


def _check_files(folder: Path, record: Record) -> None:
    """Raises Damaged for a file that is not what was written, and for a metric that its counts do not give."""
    for name, written in record.get("files", {}).items():
        check_file(folder / name, written)
    for metric, (name, of_counts) in _RECOMPUTED.items():
        value = record.get("metrics", {}).get(metric)
        counts = whole_numbers(folder / name) if value is not None else None
        if counts is None or counts.ndim != 2:
            continue
        found = of_counts(counts)
        if found is not None and not math.isclose(found, value, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            raise Damaged(f"result.json says {metric} = {value}, and the counts in {name} give {found}")
        if record.get("sentences", len(counts)) != len(counts):
            raise Damaged(f"result.json says {record['sentences']} sentences, and {name} has {len(counts)}")


def whole_numbers(path: Path) -> "NDArray[Any] | None":
    """An array of integers that an evaluation kept; None if there is none."""
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    return array if np.issubdtype(array.dtype, np.integer) else None


def _bleu(counts: "NDArray[Any]") -> float | None:
    return float(bleu(counts.sum(axis=0))) if counts.shape[1] == COUNTS else None


def _f1(counts: "NDArray[Any]") -> float | None:
    """Of matched, gold and parsed brackets."""
    if counts.shape[1] != 3:
        return None
    matched, gold, parsed = counts.sum(axis=0).tolist()
    return 200 * matched / (gold + parsed) if gold + parsed else 0.0


# metric → the file with its counts, and what they give
_RECOMPUTED: dict[str, tuple[str, Callable[["NDArray[Any]"], float | None]]] = {
    "bleu": ("statistics.npy", _bleu),
    "f1": ("brackets.npy", _f1),
}
