"""The results of a table in a store: one outcome per planned run, and readers of the files of evaluations."""

import contextlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from experiments.errors import Damaged, UserError
from experiments.events.event_log import Tail
from experiments.messages import number
from experiments.records import TRAINING
from experiments.run_spec import EvaluationSpec
from experiments.store.checksummed import check_file
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.store.run_names import compared_settings, planned_settings, recorded_settings
from experiments.tasks.columns import Column, Counts
from experiments.tasks.own.code_files import from_home
from experiments.tasks.own.kept import first_sentences, patterns_of, read_kept
from reports.spec.table_spec import TableRun

if TYPE_CHECKING:
    from numpy.typing import NDArray


# --- Counts per sentence of an evaluation, and scores recomputed from these counts. A perplexity has no counts.


TOLERANCE = 1e-6  # absolute tolerance of scores, because the order of additions may differ
ROUNDING = 1e-12  # relative tolerance, for large scores


def recomputed(column: Column, folder: Path, record: EvaluationResult) -> float | None:
    """Return the column's metric, computed from the counts in an evaluation's folder; None if there are no counts.

    Raises Damaged for counts of an unexpected shape or number of sentences.
    """
    kept = None if column.counts is None else read_counts(folder, column.counts)
    if column.counts is None or kept is None or not len(kept):
        return None
    if record.sentences not in (None, len(kept)):
        raise Damaged(f"{column.counts.file} has {number(len(kept), 'sentence')}, result.json says {record.sentences}")
    return float(column.counts.of(kept.sum(axis=0)))


def differs(recorded: Any, computed: float) -> bool:
    """Return whether a recorded score differs from the score computed from its counts."""
    usable = isinstance(recorded, int | float)
    return not usable or not abs(recorded - computed) <= max(TOLERANCE, ROUNDING * abs(computed))


def read_counts(folder: Path, counts: Counts) -> "NDArray[Any] | None":
    """Return the counts (sentences × names), as integers if all are whole; None if the evaluation stored none.

    Raises Damaged if the file cannot be read or has other contents.
    """
    import numpy as np

    path = folder / counts.file
    if not path.is_file():
        return None
    kept = _fields(path, counts.names) if path.suffix == ".jsonl" else read_array(path)
    if kept is None and path.suffix == ".jsonl":  # the trainer's examples do not have these fields
        return None
    if kept is None or kept.ndim != 2 or kept.shape[1] != len(counts.names) or not np.isfinite(kept).all():
        raise Damaged(f"{counts.file} does not hold {len(counts.names)} numbers a sentence")
    return kept


def _fields(path: Path, names: tuple[str, ...]) -> "NDArray[Any] | None":
    """Return the named fields of each line's JSON object; None if a line lacks a field or has text in it.

    Raises Damaged if the file cannot be read.
    """
    import numpy as np

    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
        kept = np.array([[line[name] for name in names] for line in lines], dtype=np.float64).reshape(-1, len(names))
    except (KeyError, TypeError):
        return None
    except (OSError, ValueError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    whole = bool((kept == np.rint(kept)).all()) and float(np.abs(kept).sum()) < 2**53
    return kept.astype(np.int64) if whole else kept


def read_array(path: Path) -> "NDArray[Any] | None":
    """Return an array of an evaluation; None if its values are not integers or real numbers.

    Raises Damaged if the file cannot be read.
    """
    import numpy as np

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped, because the header may declare any size
    except (OSError, ValueError, EOFError) as error:
        raise Damaged(f"{path.name} cannot be read ({error})") from None
    return array if array.dtype.kind in "iuf" else None


# --- Checks of records: a record must be undamaged, belong to the planned run, and agree with its files
# Other records are left out of the table, and `Outcome.harm` names the file and says what to do. A recorded metric with
# counts is compared with the metric computed from the counts. A perplexity has no counts, so it is not compared.


REDO = "Restore it from a backup, or rename that folder and run the study again"


def valid_result(store: Store, run: TableRun) -> tuple[TrainingResult | None, str]:
    """Return the record of a run's training, and "". Return None and the reason if the record is left out.

    Return None and "" if there is no record, or if the run is an ensemble and a member is not trained.
    """
    place = f"runs/{run.run_id}"
    try:
        record = store.result(run.run_id)
        if any(store.result(member) is None for member in run.spec.members):
            return None, ""  # a note names the missing member (reports/table/notes.py)
    except Damaged as damage:
        return None, str(damage).replace(f"{store.root}/", "")
    if record is None:
        return None, ""
    if record.spec is not None and record.spec.inputs != run.spec.inputs:
        return None, f"{place}/result.json is of a training on other data. {REDO}."
    theirs = recorded_settings(record.spec) if record.spec else {}
    seed = {"seed": theirs["seed"]} if "seed" in theirs else {}
    theirs = {**compared_settings(run.config, theirs), **seed}
    for name, value in (planned_settings(run.config, run.spec.trainer) | {"seed": run.config.seed}).items():
        if name in theirs and theirs[name] != value:  # the record may be older than a setting, and lack it
            return None, (
                f"{place}/result.json is of a training with {name} = {theirs[name]}, and the plan has {value}. {REDO}."
            )
    return record, ""


def valid_evaluation(
    store: Store, run: TableRun, planned: EvaluationSpec, columns: Iterable[Column] = ()
) -> tuple[EvaluationResult | None, str]:
    """Return the record of an evaluation, and "". Return None and the reason if the record is left out.

    Return None and "" if there is no record. The record is left out also if a score of `columns` does not agree with
    its counts.
    """
    place = f"runs/{run.run_id}/evaluations/{planned.eval_id}"
    try:
        record = store.evaluation(run.run_id, planned.eval_id)
        if record is None:
            return None, ""
        asked: dict[str, object] = {"settings": dict(planned.settings), "inputs": dict(planned.inputs)}
        if (
            "set" not in planned.inputs
        ):  # if it is there, it is the digest of the set's content, which replaces the name
            asked = {"set": planned.set, **asked}
        other = [name for name, value in asked.items() if getattr(record, name) not in (None, value)]
        if other:
            return None, f"{place}/result.json has other {' and '.join(other)} than the plan. {REDO}."
        _check_files(store.evaluation_folder(run.run_id, planned.eval_id), record, columns)
    except Damaged as damage:
        text = str(damage).replace(f"{store.root}/", "")
        return None, text if place in text else f"{place}: {text}. {REDO}."
    return record, ""


def read_again(
    store: Store, run: TableRun, planned: EvaluationSpec, trained: TrainingResult, made: EvaluationResult | None
) -> EvaluationResult | None:
    """Read metrics that the study declares now from the stored output of a user's trainer. Return the evaluation.

    made: the recorded evaluation; None if there is none. Return `made` if the output is missing or has no usable
    metrics. This function writes nothing: `ablations run` records the same numbers.
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


# --- Outcomes, and the files of their evaluations


@dataclass(frozen=True)
class Scored:
    """One requested evaluation. `record` is None if the evaluation is not done, or if its record is left out."""

    spec: EvaluationSpec
    record: EvaluationResult | None

    def signature(self, metric: str) -> str | None:
        """Return the metric's signature; None if the metric is not scored or has no signature."""
        return self.record.signature.get(metric) if self.record else None


NOT_RECORDED = "their files are not recorded"  # key in `Outcome.code` for code whose files are not recorded


@dataclass(frozen=True)
class Outcome:
    """One planned run (a row with one seed) and its results.

    `record` is None if the run is not trained, or if its record is left out.
    """

    run: TableRun
    record: TrainingResult | None
    scored: Mapping[str, Scored]  # set → evaluation, in the plan's order
    harm: Mapping[str, str] = field(default_factory=dict)  # set ("" for the training) → why its record is left out
    failure: str = ""  # for a failed run: the FailureClass of the last attempt that recorded an error; else ""

    def measured(self, set_: str, metric: str) -> float | None:
        """Return the metric's value; None if the value is missing or not finite."""
        scored = self.scored.get(set_)
        if self.record is None or scored is None or scored.record is None:
            return None
        value = scored.record.metrics.get(metric)
        return float(value) if value is not None and math.isfinite(value) else None

    def setting(self, name: str) -> Any:
        """Return a setting of the run by its dotted name; None if the run's task has no such setting."""
        value: Any = self.run.config
        for part in name.split("."):
            value = getattr(value, part, None)
        return value

    @property
    def stale(self) -> bool:
        """True if the run was trained or scored by code that differs from the present code."""
        return self.run.state == "stale" or bool(self.run.store_state.stale)

    def code(self, column: Column) -> Mapping[str, str]:
        """Return the digests of the code on which a number of this column depends.

        The keys are files, or for a built-in task the numeric parts of the program. A file has two names: its path from
        the study's folder, and, after a slash, its path from the top of the repository. Two rows share a file if either
        name is equal, because the study may have been moved, or another study may have made the result. For a row that
        changes code, the digests are those of the files before the change. The result is {} for imported runs and for
        runs without a record.
        """
        scored = self.scored.get(column.set)
        if self.record is None or self.run.spec.imported:
            return {}
        if not self.run.config.setting_roles.frozen_defaults:
            files = self.record.code_files if self.record.base_files is None else self.record.base_files
            if files is None:  # version 0.1.0 recorded only one digest of the code
                tree = self.record.spec.trainer.tree if self.record.spec else ""
                return {NOT_RECORDED: f"{self.record.code_digest} {tree}"}
            if self.record.code_home is None:
                return files
            places = {f"/{name}": its for name, its in files.items()}
            return {from_home(name, self.record.code_home): its for name, its in files.items()} | places
        found = {TRAINING: self.record.code_digest}
        for name, part in (scored.record.parts if scored and scored.record else {}).items():
            metrics = part.facts.get("metrics")
            if not metrics or column.metric in metrics:  # leave out a part that made only other metrics
                found[name] = part.code_digest
        return {name: digest for name, digest in found.items() if digest}


def collect(runs: Iterable[TableRun], store: Store, columns: Sequence[Column] = ()) -> list[Outcome]:
    """Read the results of every run and of its evaluations, in the order of `runs`.

    A run or an evaluation that occurs several times is read once. An evaluation whose scores of `columns` contradict
    their counts is left out, and `Outcome.harm` has the reason.
    """
    trained: dict[str, tuple[TrainingResult | None, str]] = {}
    evaluated: dict[tuple[str, str], tuple[EvaluationResult | None, str]] = {}
    outcomes = []
    for run in runs:
        if run.run_id not in trained:
            trained[run.run_id] = valid_result(store, run)
        record, why = trained[run.run_id]
        scored, harm = {}, {"": why}
        for asked in run.evaluations:
            place = (run.run_id, asked.eval_id)
            if place not in evaluated:
                found, why = valid_evaluation(store, run, asked, columns)
                if record is not None and not why and (found is None or asked.eval_id in run.store_state.to_read):
                    found = read_again(store, run, asked, record, found)
                evaluated[place] = found, why
            found, harm[asked.set] = evaluated[place]
            scored[asked.set] = Scored(asked, found)
        ended = last_failure(store, run.run_id) if run.state == "failed" else None
        harm = {name: why for name, why in harm.items() if why}
        outcomes.append(Outcome(run, record, scored, harm, ended.kind if ended else ""))
    return outcomes


# Function that returns the counts of a column in an outcome's evaluation (sentences × names); None if there are none.
CountsOf = Callable[[Outcome, Column], "NDArray[Any] | None"]
# Function that returns the number of words of each source sentence of a set; None if the outcome has not stored them.
LengthsOf = Callable[[Outcome, str], "NDArray[Any] | None"]


def counts_in(store: Store) -> CountsOf:
    """Return a function that reads the counts in a store's evaluations. `collect` has checked the files before."""

    def read(outcome: Outcome, column: Column) -> "NDArray[Any] | None":
        folder = folder_of(store, outcome, column.set)
        if folder is None or column.counts is None:
            return None
        with contextlib.suppress(Damaged):
            return read_counts(folder, column.counts)
        return None

    return read


def lengths_in(store: Store) -> LengthsOf:
    """Return a function that reads the lengths of source sentences in a store's evaluations."""

    def read(outcome: Outcome, set_: str) -> "NDArray[Any] | None":
        folder = folder_of(store, outcome, set_)
        with contextlib.suppress(Damaged):
            return None if folder is None else read_array(folder / "source_lengths.npy")
        return None

    return read


def folder_of(store: Store, outcome: Outcome, set_: str) -> Path | None:
    """Return the folder of a finished evaluation; None if the evaluation has no record."""
    scored = outcome.scored.get(set_)
    return store.evaluation_folder(outcome.run.run_id, scored.spec.eval_id) if scored and scored.record else None


# --- The record of a finished training as one flat line, for frames and `ablations explain`


RUN_FACTS = (
    "steps", "wall_s", "train_s", "device", "device_kind", "devices", "device_share", "threads", "precision", "torch",
    "repository", "commit", "dirty", "interpreter", "code_digest", "tool", "tool_commit", "host",
)  # fmt: skip


def run_facts(trained: TrainingResult | None) -> dict[str, Any]:
    """Return the RUN_FACTS of a run. Facts that the run did not record are None; all are None for an untrained run."""
    if trained is None:
        return dict.fromkeys(RUN_FACTS)
    tool = trained.tool
    found = {name: getattr(trained, name) for name in RUN_FACTS if name in TrainingResult.model_fields}
    found |= {"steps": trained.step, "torch": trained.versions.get("torch"), "tool": tool.version}
    found |= {name: getattr(trained.revision, name) for name in ("repository", "commit", "dirty")}
    found |= {"tool_commit": tool.commit}
    return {name: found[name] for name in RUN_FACTS}


# --- The error of a failed run's last attempt, from the attempt's events


LONGEST = 2000  # maximum number of characters to show of an error message


class Ended(NamedTuple):
    """The error with which an attempt ended."""

    attempt: int
    kind: str  # a FailureClass, or a class that another version recorded
    message: str


def last_failure(store: Store, run_id: str) -> Ended | None:
    """Return the error of the run's last attempt that recorded an error.

    Return None if no attempt recorded one, for instance because the process was killed.
    """
    for attempt in reversed(store.attempts(run_id)):
        failed = None
        for event in Tail(store.attempt_folder(run_id, attempt)).read():
            failed = event if event["kind"] == "failed" else failed
        if failed is not None:
            return Ended(attempt, failed["cls"], failed["message"])
    return None


def failures(outcomes: Iterable[Outcome], store: Store) -> list[tuple[Outcome, Ended]]:
    """Return the failed runs, each with its last error."""
    silent = Ended(0, "", "The process ended without an error message; `ablations status` shows its log.")
    failed = [(o, last_failure(store, o.run.run_id) or silent) for o in outcomes if o.run.state == "failed"]
    return [(outcome, ended._replace(message=ended.message[:LONGEST])) for outcome, ended in failed]
