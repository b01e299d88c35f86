"""A table's runs and evaluations as tidy pandas frames.

`ablations.load` returns these frames to scripts and notebooks (docs/python.md).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from experiments.events.history import History
from experiments.store.layout import Store
from reports.results.run_outcomes import RUN_FACTS, collect, run_facts
from reports.spec.table_spec import RowSpec, TableRun, TableSpec

if TYPE_CHECKING:
    import pandas as pd

_RUN = ("row", "group", "label", "seed", "run_id")


@dataclass(frozen=True)
class Frames:
    """Tidy frames: `runs` has one line per row × seed, `evaluations` one line per row × seed × set × metric."""

    runs: "pd.DataFrame"
    evaluations: "pd.DataFrame"


def frames(spec: TableSpec, store: Store) -> Frames:
    """Return the table's outcomes as pandas frames. Missing values are None or NaN, never 0. Times are in seconds."""
    import pandas as pd  # imported here, because the import takes half a second

    rows = {row.key: row for row in spec.rows}
    outcomes = collect(spec.runs, store, spec.metrics)
    runs = [
        _place(rows[o.run.row], o.run)
        | {"state": o.run.state, "imported": o.run.spec.imported, "stale": o.stale, "num_params": o.run.spec.num_params}
        | run_facts(o.record)
        for o in outcomes
    ]
    evaluations = [
        _place(rows[o.run.row], o.run)
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


def _place(row: RowSpec, run: TableRun) -> dict[str, Any]:
    """Return the values of the first columns of every frame."""
    return {"row": row.key, "group": row.group, "label": row.label, "seed": run.seed, "run_id": run.run_id}


def curves(spec: TableSpec, store: Store) -> "pd.DataFrame":
    """Return the metrics logged during training: one line per row × seed × metric × step.

    The column `metric` has the names that the training logged. A step that a resumed attempt repeats appears once.
    """
    import pandas as pd

    lines = [
        [*_place(row, run).values(), point.name, point.step, point.value, point.t]
        for row in spec.rows
        for run in row.runs
        for point in History(store, run.run_id).read()
    ]
    found = pd.DataFrame(lines, columns=[*_RUN, "metric", "step", "value", "time"])
    return found.assign(time=pd.to_datetime(found["time"], unit="s", utc=True))
