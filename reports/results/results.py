"""What the store holds of a plan: outcomes, and the same as tidy pandas frames. Imports no torch.

In a notebook:

    results = frames(plan, Store.open("runs", create=False))
    results.evaluations.query("metric == 'bleu'").groupby("row")["value"].agg(["mean", "std", "count"])
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablations.plan.plan import Plan, PlannedRun
from experiments.errors import Damaged
from experiments.tasks.base import EvaluationSpec
from experiments.tasks.columns import Column
from reports.results.recomputed import read_array, read_counts
from reports.results.sound import Record, Results, sound_evaluation, sound_result

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Scored:
    """One evaluation that the plan asks for; `record` is None while it has not been done."""

    spec: EvaluationSpec
    eval_id: str
    record: Record | None


@dataclass(frozen=True)
class Outcome:
    """One planned run (a row with one seed) and what came of it; `record` is None while it is not trained."""

    run: PlannedRun
    record: Record | None
    scored: Mapping[str, Scored]  # by set, in the plan's order
    harm: Mapping[str, str] = field(default_factory=dict)  # by set ("" for the training): why its record is left out

    def measured(self, set_: str, metric: str) -> float | None:
        """The metric's value, or None if there is none or it is no finite number."""
        scored = self.scored.get(set_)
        if self.record is None or scored is None or scored.record is None:
            return None
        value = scored.record.get("metrics", {}).get(metric)
        usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if usable else None

    @property
    def stale(self) -> bool:
        """Trained or scored by another revision of the code than the plan's reader has."""
        return self.run.state == "stale"


def collect(plan: Plan, store: Results, columns: Sequence[Column] = ()) -> list[Outcome]:
    """Look up every planned run and evaluation, in the plan's order; the same identity is read once.

    Scores of `columns` (a task's) that their counts do not give are left out, with the reason in `harm`.
    """
    trained: dict[str, tuple[Record | None, str]] = {}
    evaluated: dict[tuple[str, str], tuple[Record | None, str]] = {}
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
        outcomes.append(Outcome(run, record, scored, {name: why for name, why in harm.items() if why}))
    return outcomes


# The counts of a column that an outcome's evaluation kept, sentences × names; None where there are none.
CountsOf = Callable[[Outcome, Column], "NDArray[Any] | None"]
# Words of each source sentence, of an outcome and a set; None where they were not kept.
LengthsOf = Callable[[Outcome, str], "NDArray[Any] | None"]


def counts_in(store: Results) -> CountsOf:
    """A reader of what a store's evaluations kept per sentence; `collect` has checked the files."""

    def read(outcome: Outcome, column: Column) -> "NDArray[Any] | None":
        folder = _folder(store, outcome, column.set)
        if folder is None or column.counts is None:
            return None
        with contextlib.suppress(Damaged):
            return read_counts(folder, column.counts)
        return None

    return read


def lengths_in(store: Results) -> LengthsOf:
    """A reader of the lengths of source sentences that evaluations kept."""

    def read(outcome: Outcome, set_: str) -> "NDArray[Any] | None":
        folder = _folder(store, outcome, set_)
        with contextlib.suppress(Damaged):
            return None if folder is None else read_array(folder / "source_lengths.npy")
        return None

    return read


def _folder(store: Results, outcome: Outcome, set_: str) -> Path | None:
    """Where a finished evaluation keeps its files; None for a store without folders."""
    folder_of, scored = getattr(store, "evaluation_folder", None), outcome.scored.get(set_)
    if folder_of is None or scored is None or scored.record is None:
        return None
    folder: Path = folder_of(outcome.run.run_id, scored.eval_id)
    return folder


def asked(outcome: Outcome, name: str) -> Any:
    """A setting of the run by its dotted name, or None: not every task has every setting."""
    value: Any = outcome.run.config
    for part in name.split("."):
        value = getattr(value, part, None)
    return value


def look_up(record: Record | None, *path: str) -> Any:
    """`record[a][b]…`, or None where a part is not there: older stores and other tasks record less."""
    value: Any = record
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


# The same where one type alone can be printed: a bundle of somebody else's may hold anything.
def text_in(record: Record | None, *path: str) -> str:
    """ "" for what is no text."""
    value = look_up(record, *path)
    return value if isinstance(value, str) else ""


def whole_in(record: Record | None, *path: str) -> int | None:
    """A count from 0."""
    value = look_up(record, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def real_in(record: Record | None, *path: str) -> float | None:
    """A finite number from 0."""
    value = look_up(record, *path)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return float(value) if usable else None


def object_in(record: Record | None, *path: str) -> Record:
    """An object; empty if there is none."""
    value = look_up(record, *path)
    return value if isinstance(value, Mapping) else {}


def objects_in(record: Record | None, *path: str) -> list[Record]:
    """The objects of a list."""
    value = look_up(record, *path)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


# What a finished run's record says of itself, and where.
RUN_FACTS: dict[str, tuple[str, ...]] = {
    "steps": ("step",),
    "wall_s": ("wall_s",),
    "train_s": ("train_s",),
    "device": ("device",),
    "device_kind": ("device_kind",),
    "devices": ("devices",),
    "device_share": ("device_share",),
    "threads": ("threads",),
    "precision": ("precision",),
    "torch": ("versions", "torch"),
    "repository": ("revision", "repository"),
    "commit": ("revision", "commit"),
    "dirty": ("revision", "dirty"),
    "code_digest": ("code_digest",),
    "tool": ("tool", "version"),
    "tool_commit": ("tool", "commit"),
    "host": ("host",),
}


def fact(record: Record | None, name: str) -> Any:
    """One of RUN_FACTS of a run's record, or None."""
    return look_up(record, *RUN_FACTS[name])


_RUN = ("row", "group", "label", "seed", "run_id")


@dataclass(frozen=True)
class Frames:
    """Tidy frames. `runs`: one line per row × seed. `evaluations`: one per row × seed × set × metric that is there."""

    runs: "pd.DataFrame"
    evaluations: "pd.DataFrame"


def frames(plan: Plan, store: Results, columns: Sequence[Column] = ()) -> Frames:
    """The plan's outcomes as pandas frames; missing values are None or NaN, never 0. Times in seconds.

    `columns` as in `collect`.
    """
    import pandas as pd  # imported late: it takes half a second

    outcomes = collect(plan, store, columns)
    runs = [
        {name: getattr(o.run, name) for name in _RUN}
        | {"state": o.run.state, "stale": o.stale, "num_params": o.run.num_params}
        | {name: fact(o.record, name) for name in RUN_FACTS}
        for o in outcomes
    ]
    evaluations = [line for o in outcomes for line in _evaluation_lines(o)]
    return Frames(
        pd.DataFrame(runs, columns=[*_RUN, "state", "stale", "num_params", *RUN_FACTS]),
        pd.DataFrame(evaluations, columns=[*_RUN, "eval_id", "set", "metric", "value", "signature", "sentences"]),
    )


def _evaluation_lines(outcome: Outcome) -> list[dict[str, Any]]:
    lines = []
    for set_, scored in outcome.scored.items():
        for metric in look_up(scored.record, "metrics") or ():
            line = {name: getattr(outcome.run, name) for name in _RUN}
            line |= {"eval_id": scored.eval_id, "set": set_, "metric": metric}
            line["value"] = outcome.measured(set_, metric)
            line["signature"] = look_up(scored.record, "signature", metric)
            line["sentences"] = look_up(scored.record, "sentences")
            lines.append(line)
    return lines
