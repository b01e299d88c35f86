"""The results of a table in a store: one outcome per planned run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from experiments.events.event_log import Tail
from experiments.records import TRAINING
from experiments.run_spec import EvaluationSpec
from experiments.store.layout import Store
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.tasks.columns import Column
from experiments.tasks.own.code_files import from_home
from reports.results.valid_records import read_again, undescribed_why, valid_evaluation, valid_result
from reports.spec.table_spec import TableRun


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
    scored: Mapping[str, Scored]  # set → evaluation, in the order of the plan
    harm: Mapping[str, str] = field(default_factory=dict)  # set ("" for the training) → why its record is left out
    failure: str = ""  # for a failed run: the FailureClass of the last attempt that recorded an error; else ""
    undescribed: str = ""  # why the run's description (config.json) cannot be read; no number depends on it

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
        undescribed = undescribed_why(store, run) if record is not None else ""
        outcomes.append(Outcome(run, record, scored, harm, ended.kind if ended else "", undescribed))
    return outcomes


RUN_FACTS = (
    "steps", "wall_s", "train_s", "device", "device_kind", "devices", "device_share", "threads", "precision", "torch",
    "repository", "commit", "dirty", "interpreter", "code_digest", "tool", "tool_commit", "host",
)  # fmt: skip


def run_facts(trained: TrainingResult | None) -> dict[str, Any]:
    """Return the RUN_FACTS of a run. A fact that was not recorded is None. For an untrained run, all facts are None."""
    if trained is None:
        return dict.fromkeys(RUN_FACTS)
    tool = trained.tool
    found = {name: getattr(trained, name) for name in RUN_FACTS if name in TrainingResult.model_fields}
    found |= {"steps": trained.step, "torch": trained.versions.get("torch"), "tool": tool.version}
    found |= {name: getattr(trained.revision, name) for name in ("repository", "commit", "dirty")}
    found |= {"tool_commit": tool.commit}
    return {name: found[name] for name in RUN_FACTS}


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
