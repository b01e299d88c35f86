"""A study's page in MLflow: a note with the table, its files, and a saved comparison of its runs.

A saved comparison is an experiment's tag in the page's internal format (MLflow 3.17: JSON of the page's state). It is
no public interface; a page that cannot read it still shows the same runs by the search in the plain link.
Imports no mlflow: `publish` gets a Tracker.
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from experiments.identity import digest
from experiments.tracking.record import COST

if TYPE_CHECKING:
    from experiments.tracking.mlflow import Tracker

NOTE, NOTE_LENGTH = "mlflow.note.content", 7900  # MLflow allows 8,000 characters
VIEW = "mlflow.sharedViewState."
VIEW_LENGTH = 4900  # MLflow allows 5,000 characters in an experiment's tag
FOLDER = "table"  # among the parent run's artifacts


@dataclass(frozen=True)
class Chart:
    """One metric of the runs, as bars over rows or, with `curve`, as lines over steps."""

    metric: str
    title: str
    curve: bool = False


@dataclass(frozen=True)
class Table:
    """A printed table and its runs, in the table's order."""

    study: str
    profile: str
    corpus: str
    rows: int
    runs: Sequence[str]  # identities
    note: str  # Markdown
    files: Mapping[str, bytes]
    charts: Sequence[Chart]
    cost: Mapping[str, float]  # what all of it cost; metrics of the heading


@dataclass(frozen=True)
class Published:
    """A table's saved comparison in MLflow."""

    experiment: str
    key: str  # of the saved view
    search: str
    order: str

    def view(self, server: str) -> str:
        """The address of the saved comparison on a server."""
        return f"{self._page(server)}viewStateShareKey={self.key}&compareRunsMode=CHART"

    def listing(self, server: str) -> str:
        """The address of a list of the same runs, by a search in the address itself."""
        order = f"orderByKey={quote(self.order, safe='')}&orderByAsc=true"
        return f"{self._page(server)}searchFilter={quote(self.search, safe='')}&{order}"

    def _page(self, server: str) -> str:
        return f"{server.rstrip('/')}/#/experiments/{self.experiment}/runs?"


def publish(tracker: "Tracker", table: Table) -> Published:
    """Write the note, files and view of a table; can be repeated. The table's runs must have been synced."""
    client = tracker.client
    experiment = tracker.headings.experiment(table.study)
    heading = tracker.headings.heading(table.study, table.profile, table.corpus)
    client.set_tag(heading, NOTE, _note(table.note))
    known_costs = client.get_run(heading).data.metrics
    for name, value in table.cost.items():
        if known_costs.get(f"{COST}{name}") != value:
            client.log_metric(heading, f"{COST}{name}", value)
    with tempfile.TemporaryDirectory(prefix="ablations-view-") as folder:
        for name, data in table.files.items():
            path = Path(folder) / name
            path.write_bytes(data)
            tracker.artifacts.keep(heading, path, f"{FOLDER}/{name}", fresh=True)
    order = f"order.{table.study}"
    known = {run.data.tags.get("run_id"): run for run in _runs_of(client, experiment)}
    for number, run_id in enumerate(table.runs):
        place = f"{number:05d}"
        if run_id in known and known[run_id].data.tags.get(order) != place:
            client.set_tag(known[run_id].info.run_id, order, place)
    ids = [known[run_id].info.run_id for run_id in table.runs if run_id in known]
    search = f"attributes.run_id IN ({', '.join(repr(str(name)) for name in ids)})"
    state = _state(table, search, f"tags.`{order}`")
    if len(state) > VIEW_LENGTH:  # too many to list: use all runs below the parent run
        search = f"tags.`mlflow.parentRunId` = '{heading}'"
        state = _state(table, search, f"tags.`{order}`")
    key = digest(["view", table.study, table.profile, table.corpus])
    client.set_experiment_tag(experiment, VIEW + key, state)
    return Published(experiment, key, search, f"tags.`{order}`")


def _runs_of(client: Any, experiment: str) -> list[Any]:
    found: list[Any] = []
    token = None
    while True:
        page = client.search_runs([experiment], max_results=1000, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _note(text: str) -> str:
    """As many whole lines as fit."""
    if len(text) <= NOTE_LENGTH:
        return text
    rest = f"\n\n… the whole table is among this run's artifacts, in `{FOLDER}/`."
    return text[: NOTE_LENGTH - len(rest)].rpartition("\n")[0] + rest


def _state(table: Table, search: str, order: str) -> str:
    """The page's state: rows as groups, means over seeds, charts of the table's columns."""
    section = {"uuid": "table", "name": "The table", "display": True, "isReordered": False, "deleted": False}
    state = {
        "searchFilter": search,
        "orderByKey": order,
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "tag", "groupByData": "row"}]},
        "useGroupedValuesInCharts": True,
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "selectedColumns": [f"metrics.`{chart.metric}`" for chart in table.charts if not chart.curve],
        "compareRunSections": [{**section, "isGenerated": False}],
        "compareRunCharts": [_chart(chart, table.rows) for chart in table.charts],
    }
    return json.dumps(state, ensure_ascii=True, separators=(",", ":"))


def _chart(chart: Chart, rows: int) -> dict[str, Any]:
    common = {"uuid": digest(chart.metric), "metricSectionId": "table", "deleted": False, "isGenerated": False,
              "metricKey": chart.metric, "displayName": chart.title, "runsCountToCompare": max(10, rows)}  # fmt: skip
    if not chart.curve:
        return {"type": "BAR", **common}
    return {"type": "LINE", **common, "selectedMetricKeys": [chart.metric], "xAxisKey": "step", "yAxisKey": "metric",
            "scaleType": "log", "xAxisScaleType": "linear", "lineSmoothness": 0, "useGlobalXaxisKey": True}  # fmt: skip


def saved_views(tracker: "Tracker") -> dict[str, list[Published]]:
    """The saved views by study; the page's own search and order are unknown."""
    return {
        experiment.name: [
            Published(experiment.experiment_id, name.removeprefix(VIEW), "", "")
            for name in sorted(experiment.tags)
            if name.startswith(VIEW)
        ]
        for experiment in tracker.client.search_experiments()
        if any(name.startswith(VIEW) for name in experiment.tags)
    }
