"""The results of a plan in a store: one outcome per planned run, and readers of its evaluations' files."""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.plan.planned import Plan, PlannedRun
from experiments.errors import Damaged
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.tasks.base import EvaluationSpec
from experiments.tasks.columns import Column
from reports.results.ended import last_failure
from reports.results.recomputed import read_array, read_counts
from reports.results.sound import Results, sound_evaluation, sound_result

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Scored:
    """One requested evaluation; `record` is None until it is made."""

    spec: EvaluationSpec
    eval_id: str
    record: EvaluationResult | None

    def signature(self, metric: str) -> str | None:
        """The metric's signature; None if it is not scored or has none."""
        return self.record.signature.get(metric) if self.record else None


@dataclass(frozen=True)
class Outcome:
    """One planned run (a row with one seed) and its results; `record` is None until it is trained."""

    run: PlannedRun
    record: TrainingResult | None
    scored: Mapping[str, Scored]  # by set, in the plan's order
    harm: Mapping[str, str] = field(default_factory=dict)  # by set ("" for the training): why its record is left out
    failure: str = ""  # of a failed run: how its last attempt ended (a FailureClass)

    def measured(self, set_: str, metric: str) -> float | None:
        """The metric's value; None if it is missing or not finite."""
        scored = self.scored.get(set_)
        if self.record is None or scored is None or scored.record is None:
            return None
        value = scored.record.metrics.get(metric)
        return float(value) if value is not None and math.isfinite(value) else None

    def setting(self, name: str) -> Any:
        """A setting of the run by its dotted name, or None: not every task has every setting."""
        value: Any = self.run.config
        for part in name.split("."):
            value = getattr(value, part, None)
        return value

    @property
    def stale(self) -> bool:
        """Whether it was trained or scored by other code than the present."""
        return self.run.state == "stale"


def collect(plan: Plan, store: Results, columns: Sequence[Column] = ()) -> list[Outcome]:
    """Look up every planned run and evaluation, in the plan's order; the same identity is read once.

    Scores of `columns` (a task's) that contradict their counts are left out, with the reason in `harm`.
    """
    trained: dict[str, tuple[TrainingResult | None, str]] = {}
    evaluated: dict[tuple[str, str], tuple[EvaluationResult | None, str]] = {}
    outcomes = []
    for run in plan.runs:
        if run.run_id not in trained:
            trained[run.run_id] = sound_result(store, run)
        record, why = trained[run.run_id]
        scored, harm = {}, {"": why}
        for asked in run.evaluations:
            place = (run.run_id, asked.eval_id)
            if place not in evaluated:
                evaluated[place] = sound_evaluation(store, run, asked, columns)
            found, harm[asked.spec.set] = evaluated[place]
            scored[asked.spec.set] = Scored(asked.spec, asked.eval_id, found)
        ended = last_failure(store, run.run_id) if run.state == "failed" else None
        harm = {name: why for name, why in harm.items() if why}
        outcomes.append(Outcome(run, record, scored, harm, ended.kind if ended else ""))
    return outcomes


# The counts of a column in an outcome's evaluation, sentences × names; None if it has none.
CountsOf = Callable[[Outcome, Column], "NDArray[Any] | None"]
# Words of each source sentence of a set in an outcome; None if they were not kept.
LengthsOf = Callable[[Outcome, str], "NDArray[Any] | None"]


def counts_in(store: Results) -> CountsOf:
    """A reader of the counts in a store's evaluations; `collect` has checked the files."""

    def read(outcome: Outcome, column: Column) -> "NDArray[Any] | None":
        folder = _folder(store, outcome, column.set)
        if folder is None or column.counts is None:
            return None
        with contextlib.suppress(Damaged):
            return read_counts(folder, column.counts)
        return None

    return read


def lengths_in(store: Results) -> LengthsOf:
    """A reader of the lengths of source sentences in a store's evaluations."""

    def read(outcome: Outcome, set_: str) -> "NDArray[Any] | None":
        folder = _folder(store, outcome, set_)
        with contextlib.suppress(Damaged):
            return None if folder is None else read_array(folder / "source_lengths.npy")
        return None

    return read


def _folder(store: Results, outcome: Outcome, set_: str) -> Path | None:
    """The folder of a finished evaluation; None for a store without folders."""
    folder_of, scored = getattr(store, "evaluation_folder", None), outcome.scored.get(set_)
    if folder_of is None or scored is None or scored.record is None:
        return None
    folder: Path = folder_of(outcome.run.run_id, scored.eval_id)
    return folder
