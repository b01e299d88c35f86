"""Runs in MLflow that nothing trained: rows of a printed table, and rows that share another row's training.

The rows of a printed table stand below the table's parent, with means, deviations and changes. A row that shares a
training has its own name and scores beside that training (mlflow.py). Both are views of runs: they have no `run_id`,
and are made anew where their content has changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.identity import digest
from experiments.tracking.names import to_key, whole_names

ROWS_OF = "rows_of"  # tag: the parent's `heading`
SHARED = "training"  # tag of a row that shares a training: that run's run_id
CONTENT = "content"  # tag: digest of all that the run shows; set last, so that an incomplete one has none
POINTS_AT_ONCE, PARAMS_AT_ONCE = 900, 100  # MLflow's limits are 1,000 and 100
PARAM_LENGTH = 500  # MLflow's limit on a parameter's text


@dataclass(frozen=True)
class RowLine:
    """A row as the table prints it."""

    key: str
    group: str
    seeds: int  # that its means are over
    params: Mapping[str, str]  # settings that vary in the table, also where they are base's
    metrics: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)  # steps and means over seeds


@dataclass(frozen=True)
class View:
    """All that such a run shows."""

    experiment: str
    parent: str  # its heading's id
    name: str
    tags: Mapping[str, str]
    params: Mapping[str, str]
    points: Sequence[tuple[str, float, int, int]]  # name, value, time in ms, step
    times_ms: tuple[int | None, int | None] = (None, None)  # of its start and end
    status: str = "FINISHED"


def write_rows(client: Any, experiment: str, heading: str, about: Mapping[str, str], lines: Sequence[RowLine]) -> str:
    """Bring the runs of a table's rows up to date; returns the search that finds them.

    heading: the parent's id. about: the parent's tags; `order…` among them is the name of the tag with the row's place.
    """
    rows_of = digest([about["study"], about["profile"], about["corpus"]])
    search = f"tags.{ROWS_OF} = '{rows_of}'"
    views = []
    for place, line in enumerate(lines):
        tags = {**about, "row": line.key, "group": line.group, "seeds": str(line.seeds), ROWS_OF: rows_of}
        tags |= {f"order.{about['study']}": f"{place:05d}"}
        points = [(name, value, 0, 0) for name, value in line.metrics.items()]
        points += [(name, value, 0, step) for name, curve in line.curves.items() for step, value in curve]
        views.append(View(experiment, heading, line.key, tags, line.params, points))
    write_views(client, views, client.search_runs([experiment], search, max_results=10_000))
    return search


def write_views(client: Any, views: Iterable[View], known: Iterable[Any]) -> None:
    """Make the views that are not among MLflow's `known` runs, and delete those of these that are no longer views."""
    wanted = {_content(view): view for view in views}
    for run in known:
        if wanted.pop(run.data.tags.get(CONTENT, ""), None) is None:
            client.delete_run(run.info.run_id)
    for content, view in wanted.items():
        _write(client, view, content)


def _content(view: View) -> str:
    """A digest of what it shows, not of the ids that this database gives."""
    told = asdict(view) | {"points": repr(view.points)}  # some are not finite
    return digest({name: value for name, value in told.items() if name not in ("experiment", "parent")})


def _write(client: Any, view: View, content: str) -> None:
    from mlflow.entities import Metric, Param, RunTag

    start, end = view.times_ms
    tags = {**view.tags, "mlflow.parentRunId": view.parent}
    made = client.create_run(view.experiment, start_time=start, tags=tags, run_name=view.name)
    params = [Param(to_key(name), value[:PARAM_LENGTH]) for name, value in view.params.items()]
    points = [Metric(to_key(name), value, t, step) for name, value, t, step in view.points]
    for at in range(0, len(params), PARAMS_AT_ONCE):
        client.log_batch(made.info.run_id, params=params[at : at + PARAMS_AT_ONCE])
    for at in range(0, len(points), POINTS_AT_ONCE):
        client.log_batch(made.info.run_id, metrics=points[at : at + POINTS_AT_ONCE])
    client.set_terminated(made.info.run_id, view.status, end)
    named = whole_names([*view.params, *(name for name, *_ in view.points)])
    client.log_batch(made.info.run_id, tags=[RunTag(*item) for item in {**named, CONTENT: content}.items()])
