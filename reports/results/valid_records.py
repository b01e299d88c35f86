"""Checks of records: a record must be undamaged, belong to the planned run, and agree with its files.

Other records are left out of the table, and `Outcome.harm` names the file and says what to do. If an evaluation
stored counts per sentence (as for BLEU), the metric is computed from the counts again and compared with the recorded
metric. A perplexity has no counts, so it is not compared.
"""

import contextlib
import math
from collections.abc import Iterable
from pathlib import Path

from experiments.errors import Damaged, UserError
from experiments.run_spec import EvaluationSpec
from experiments.store.checksummed import check_file
from experiments.store.layout import Store, description_of
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.store.run_names import compared_settings, planned_settings, recorded_settings
from experiments.tasks.columns import Column
from experiments.tasks.own.kept import first_sentences, patterns_of, read_kept
from reports.results.evaluation_counts import differs, recomputed
from reports.spec.table_spec import TableRun

REDO = "Restore this file from a backup, or rename its folder {} and run the study again"


def valid_result(store: Store, run: TableRun) -> tuple[TrainingResult | None, str]:
    """Return the record of a run's training, and "". Return None and the reason if the record is left out.

    Return None and "" if there is no record, or if the run is an ensemble and a member is not trained.
    """
    place = f"runs/{run.run_id}"
    redo = REDO.format(place)
    try:
        record = store.result(run.run_id)
        if any(store.result(member) is None for member in run.spec.members):
            return None, ""  # a note names the missing member (reports/table/notes.py)
    except Damaged as damage:
        return None, str(damage).replace(f"{store.root}/", "")
    if record is None:
        return None, ""
    if record.spec is not None and record.spec.inputs != run.spec.inputs:
        return None, f"{place}/result.json is of a training on other data. {redo}."
    theirs = recorded_settings(record.spec) if record.spec else {}
    seed = {"seed": theirs["seed"]} if "seed" in theirs else {}
    theirs = {**compared_settings(run.config, theirs), **seed}
    for name, value in (planned_settings(run.config, run.spec.trainer) | {"seed": run.config.seed}).items():
        if name in theirs and theirs[name] != value:  # a record that is older than a setting lacks the setting
            return None, (
                f"{place}/result.json is of a training with {name} = {theirs[name]}, and the plan has {value}. {redo}."
            )
    return record, ""


def undescribed_why(store: Store, run: TableRun) -> str:
    """Return why the description of a run cannot be read; "" if it can be read or is missing.

    The numbers do not depend on it, because the result has its own record of the settings.
    """
    try:
        description_of(store, run.run_id)
    except UserError as error:
        return str(error).replace(f"{store.root}/", "")
    return ""


def valid_evaluation(
    store: Store, run: TableRun, planned: EvaluationSpec, columns: Iterable[Column] = ()
) -> tuple[EvaluationResult | None, str]:
    """Return the record of an evaluation, and "". Return None and the reason if the record is left out.

    Return None and "" if there is no record. The record is also left out if a score of `columns` does not agree with
    its counts.
    """
    place = f"runs/{run.run_id}/evaluations/{planned.eval_id}"
    redo = REDO.format(place)
    try:
        record = store.evaluation(run.run_id, planned.eval_id)
        if record is None:
            return None, ""
        asked: dict[str, object] = {"settings": dict(planned.settings), "inputs": dict(planned.inputs)}
        # If the planned inputs contain the digest of the set's content, the set's name is not compared.
        if "set" not in planned.inputs:
            asked = {"set": planned.set, **asked}
        other = [name for name, value in asked.items() if getattr(record, name) not in (None, value)]
        if other:
            return None, f"{place}/result.json has other {' and '.join(other)} than the plan. {redo}."
        _check_files(store.evaluation_folder(run.run_id, planned.eval_id), record, columns)
    except Damaged as damage:
        text = str(damage).replace(f"{store.root}/", "")
        return None, text if place in text else f"{place}: {text}. {redo}."
    return record, ""


def read_again(
    store: Store, run: TableRun, planned: EvaluationSpec, trained: TrainingResult, made: EvaluationResult | None
) -> EvaluationResult | None:
    """From the stored output of a user's trainer, read the metrics that the study now declares. Return the evaluation.

    made: the recorded evaluation; None if there is none. Return `made` if the output is missing or has no usable
    metrics. This function writes nothing. The next `ablations run` stores these numbers.
    """
    if not planned.promised:
        return made
    patterns = patterns_of(run.spec.trainer.patterns, planned.set)
    before = made if made is not None and made.weights_attempt == trained.attempt else None
    with contextlib.suppress(Damaged, UserError):
        weights = store.attempt_folder(run.run_id, trained.attempt)
        found = read_kept(weights, planned.set, planned.promised, patterns, before)
        if made is not None:
            lacking = {name: first_sentences(why) for name, why in found.lacking.items() if why}
            return made.model_copy(update={"metrics": found.metrics, "lacking": lacking})
        promised = {name.removeprefix(f"{planned.set}.") for name in planned.promised}
        finite = all(map(math.isfinite, found.metrics.values()))
        if finite and promised & found.metrics.keys():  # otherwise the run failed, as its state shows
            of_set: dict[str, float | None] = {**found.metrics}
            return EvaluationResult(run_id=run.run_id, eval_id=planned.eval_id, set=planned.set, metrics=of_set)
    return made


def _check_files(folder: Path, record: EvaluationResult, columns: Iterable[Column]) -> None:
    """Raise Damaged for a changed file, and for a metric that contradicts its counts."""
    for name, written in record.files.items():
        check_file(folder / Path(name).name, written)
    for column in {column.metric: column for column in columns if column.metric in record.metrics}.values():
        computed, value = recomputed(column, folder, record), record.metrics[column.metric]
        if computed is not None and differs(value, computed):
            raise Damaged(f"result.json says {column.metric} = {value}, and the counts beside it give {computed}")
