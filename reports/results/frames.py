"""A plan's outcomes as tidy pandas frames.

`ablations.load` gives them to scripts and notebooks (docs/python.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ablations.planning.planned import Plan, PlannedRun
from experiments.events.history import History
from experiments.store.layout import Store
from experiments.tasks.columns import Column
from reports.results.results import RUN_FACTS, collect, run_facts

if TYPE_CHECKING:
    import pandas as pd

_RUN = ("row", "group", "label", "seed", "run_id")


@dataclass(frozen=True)
class Frames:
    """Tidy frames. `runs`: one line per row × seed. `evaluations`: one per row × seed × set × metric that is there."""

    runs: "pd.DataFrame"
    evaluations: "pd.DataFrame"


def frames(plan: Plan, store: Store, columns: Sequence[Column] = ()) -> Frames:
    """The plan's outcomes as pandas frames; missing values are None or NaN, never 0. Times in seconds.

    `columns` as in `collect`.
    """
    import pandas as pd  # imported late: it takes half a second

    outcomes = collect(plan, store, columns)
    runs = [
        _place(o.run)
        | {"state": o.run.state, "imported": o.run.spec.imported, "stale": o.stale, "num_params": o.run.spec.num_params}
        | run_facts(o.record)
        for o in outcomes
    ]
    evaluations = [
        _place(o.run)
        | {"eval_id": scored.spec.eval_id, "set": set_, "metric": metric, "value": o.measured(set_, metric)}
        | {"signature": scored.signature(metric), "sentences": scored.record.sentences}
        for o in outcomes
        for set_, scored in o.scored.items()
        if scored.record
        for metric in scored.record.metrics
    ]
    return Frames(
        pd.DataFrame(runs, columns=[*_RUN, "state", "imported", "stale", "num_params", *RUN_FACTS]),
        pd.DataFrame(evaluations, columns=[*_RUN, "eval_id", "set", "metric", "value", "signature", "sentences"]),
    )


def _place(run: PlannedRun) -> dict[str, Any]:
    """The columns with which every frame begins."""
    variation = run.variation
    return {
        "row": run.row,
        "group": variation.group,
        "label": variation.label,
        "seed": run.seed,
        "run_id": run.run_id,
    }


def curves(plan: Plan, store: Store) -> "pd.DataFrame":
    """What runs logged while they trained: one line per row × seed × metric × step, by the names that they logged.

    A step that a resumed attempt repeats is there once.
    """
    import pandas as pd

    lines = [
        [*_place(run).values(), point.name, point.step, point.value, point.t]
        for run in plan.runs
        for point in History(store, run.run_id).read()
    ]
    found = pd.DataFrame(lines, columns=[*_RUN, "metric", "step", "value", "time"])
    return found.assign(time=pd.to_datetime(found["time"], unit="s", utc=True))
