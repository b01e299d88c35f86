"""Views: MLflow runs that represent rows of tables and not trainings.

There are two kinds of views. A row of a printed table has means, deviations and changes; page.py nests the trained
runs of the row below it. A row that shares the training of another row has its own name and scores. Views have no tag
`run_id`. If the content of a view changes, its MLflow run is replaced.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from experiments.identity import digest
from experiments.tracking.database import import_mlflow, log
from experiments.tracking.mlflow_keys import to_key, whole_names

ROWS_OF = "rows_of"  # tag of a row of a printed table; its value is the tag `heading` of the table's heading
TABLE = "table"  # tag with the same value for all rows of a printed table and their trained runs
PARENT = "mlflow.parentRunId"
SHARED = "training"  # tag of a row that shares a training: run_id of the training
CONTENT = "content"  # tag: digest of a view's content; written last, so that incomplete views lack it
PARAM_LENGTH = 500  # MLflow's limit on the text of a parameter


@dataclass(frozen=True)
class RowLine:
    """A row of a printed table."""

    key: str
    group: str
    seeds: int  # number of seeds in the means
    params: Mapping[str, str]  # settings that vary in the table, even if they equal those of base
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class MlflowRunView:
    """The content of a view: name, tags, parameters and metrics."""

    experiment: str
    parent: str  # id of its heading; "" if it has no parent
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: Sequence[tuple[str, float, int, int]]  # (name, value, time in ms, step)
    times_ms: tuple[int | None, int | None] = (None, None)  # (start, end)
    status: str = "FINISHED"


def write_rows(
    client: Any, experiment: str, heading: Any, about: Mapping[str, str], lines: Sequence[RowLine]
) -> dict[str, str]:
    """Update the views of a table's rows, and return a mapping from row keys to MLflow's ids.

    The views have no parent, so that rows are at the top level of MLflow's list. MLflow nests runs only in a list that
    is sorted by start time, so start times encode the order of rows.

    heading: the heading of the table.
    about: tags of the table.
    """
    table, begin = heading.data.tags["heading"], heading.info.start_time
    views = []
    for place, line in enumerate(lines):
        tags = {**about, "row": line.key, "group": line.group, "seeds": str(line.seeds), ROWS_OF: table, TABLE: table}
        points = [(name, value, 0, 0) for name, value in line.metrics.items()]
        views.append(MlflowRunView(experiment, "", line.key, tags, line.params, points, (begin + place,) * 2))
    ids = write_views(
        client, views, client.search_runs([experiment], f"tags.{ROWS_OF} = '{table}'", max_results=10_000)
    )
    return dict(zip((line.key for line in lines), ids, strict=True))


def write_views(client: Any, views: Iterable[MlflowRunView], known: Iterable[Any]) -> list[str]:
    """Create the views that are missing among the `known` MLflow runs. Delete known runs that no longer match a view.

    Returns MLflow's ids of the views.
    """
    wanted = {_content(view): view for view in views}
    ids: dict[str, str] = {}
    for run in known:
        shown = run.data.tags.get(CONTENT, "")
        if shown in wanted and shown not in ids:
            ids[shown] = run.info.run_id
        else:
            client.delete_run(run.info.run_id)
    return [ids.get(shown) or _write(client, view, shown) for shown, view in wanted.items()]


def _content(view: MlflowRunView) -> str:
    """Return a digest of a view, without ids that differ between databases."""
    shown = asdict(view) | {"points": repr(view.points)}  # text, because values may not be finite
    return digest({name: value for name, value in shown.items() if name not in ("experiment", "parent")})


def _write(client: Any, view: MlflowRunView, content: str) -> str:
    entities = import_mlflow().entities
    start, end = view.times_ms
    tags = {**view.tags, **({PARENT: view.parent} if view.parent else {})}
    made = client.create_run(view.experiment, start_time=start, tags=tags, run_name=view.name)
    params = [entities.Param(to_key(name), value[:PARAM_LENGTH]) for name, value in view.params.items()]
    points = [entities.Metric(to_key(name), value, t, step) for name, value, t, step in view.points]
    log(client, made.info.run_id, params=params, metrics=points)
    client.set_terminated(made.info.run_id, view.status, end)
    named = whole_names([*view.params, *(name for name, *_ in view.points)])
    log(client, made.info.run_id, tags=[entities.RunTag(*item) for item in {**named, CONTENT: content}.items()])
    mlflow_id: str = made.info.run_id
    return mlflow_id
