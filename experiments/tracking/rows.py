"""The rows of a printed table in MLflow: a run for each, below the table's parent, with means, deviations and changes.

A row's run is a view of runs that were trained: it has no `run_id`, and is made anew where the table has changed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.identity import digest
from experiments.tracking.names import to_key

ROWS_OF = "rows_of"  # tag: the parent's `heading`
CONTENT = "content"  # tag: digest of all that the run shows
POINTS_AT_ONCE = 900  # MLflow's limit is 1,000


@dataclass(frozen=True)
class RowLine:
    """A row as the table prints it."""

    key: str
    group: str
    seeds: int  # that its means are over
    params: Mapping[str, str]  # settings that vary in the table, also where they are base's
    metrics: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)  # steps and means over seeds


def write_rows(client: Any, experiment: str, heading: str, about: Mapping[str, str], lines: Sequence[RowLine]) -> str:
    """Bring the runs of a table's rows up to date; returns the search that finds them.

    heading: the parent's id. about: the parent's tags; `order…` among them is the name of the tag with the row's place.
    """
    rows_of = digest([about["study"], about["profile"], about["corpus"]])
    search = f"tags.{ROWS_OF} = '{rows_of}'"
    known = {
        run.data.tags.get(CONTENT, ""): run for run in client.search_runs([experiment], search, max_results=10_000)
    }
    for place, line in enumerate(lines):
        tags = {**about, "row": line.key, "group": line.group, "seeds": str(line.seeds), ROWS_OF: rows_of}
        tags[f"order.{about['study']}"] = f"{place:05d}"
        tags[CONTENT] = digest([tags, line.key, dict(line.params), dict(line.metrics), dict(line.curves)])
        if known.pop(tags[CONTENT], None) is None:
            _write(client, experiment, {**tags, "mlflow.parentRunId": heading}, line)
    for outdated in known.values():
        client.delete_run(outdated.info.run_id)
    return search


def _write(client: Any, experiment: str, tags: dict[str, str], line: RowLine) -> None:
    from mlflow.entities import Metric, Param

    made = client.create_run(experiment, tags=tags, run_name=line.key)
    params = [Param(to_key(name), value[:500]) for name, value in line.params.items()]
    points = [Metric(to_key(name), value, 0, 0) for name, value in line.metrics.items()]
    points += [Metric(to_key(n), value, 0, step) for n, curve in line.curves.items() for step, value in curve]
    client.log_batch(made.info.run_id, params=params[:100])
    for at in range(0, len(points), POINTS_AT_ONCE):
        client.log_batch(made.info.run_id, metrics=points[at : at + POINTS_AT_ONCE])
    client.set_terminated(made.info.run_id, "FINISHED")
