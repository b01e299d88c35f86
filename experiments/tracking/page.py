"""A study's page in MLflow: a note with the table, its files, a run per row, and saved views of them.

A saved view is an experiment's tag in the page's internal format (MLflow 3.17: JSON of the page's state, deflated). It
is no public interface; a page that cannot read it still shows the runs. Links open MLflow's mode for model training:
without `workflowType` it opens an experiment among traces of language models.
Imports no mlflow: `publish` gets a Tracker.
"""

import base64
import json
import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.identity import digest
from experiments.tracking.database import SHARED, RowLine, to_key, write_rows
from experiments.tracking.record import COST, NUM_PARAMS

if TYPE_CHECKING:
    from experiments.tracking.mlflow import Tracker

NOTE, NOTE_LENGTH = "mlflow.note.content", 7900  # MLflow allows 8,000 characters
VIEW = "mlflow.sharedViewState."
VIEW_LENGTH = 4900  # MLflow allows 5,000 characters in an experiment's tag
LISTS = "list_of."  # tag: key of the saved charts → key of the saved list
KIND, TRAINING = "mlflow.experimentKind", "custom_model_development"
WIDTHS = {"params": 70, "metrics": 110}  # pixels of the list's columns
FOLDER = "table"  # among the parent run's artifacts


@dataclass(frozen=True)
class Chart:
    """One metric of the rows, as bars or, with `curve`, as lines over steps."""

    metric: str
    title: str
    curve: bool = False


@dataclass(frozen=True)
class Table:
    """A printed table and its runs, in the table's order."""

    study: str
    profile: str
    corpus: str
    title: str  # Markdown
    latest: str  # Markdown: its profile and corpus
    runs: Sequence[tuple[int, str, str]]  # place of the row, its key, identity: by row, then by seed
    lines: Sequence[RowLine]
    note: str  # Markdown
    files: Mapping[str, bytes]
    charts: Sequence[Chart]
    columns: Sequence[str]  # metrics of the rows and of the runs that the list shows
    cost: Mapping[str, float]  # what all of it cost; metrics of the heading


@dataclass(frozen=True)
class Published:
    """A table's saved views in MLflow."""

    experiment: str
    charts: str  # keys of the saved views
    lines: str = ""

    def view(self, server: str) -> str:
        """The address of the charts on a server."""
        return f"{self._page(server)}&viewStateShareKey={self.charts}&compareRunsMode=CHART"

    def listing(self, server: str) -> str:
        """The address of the list of rows, each with its runs."""
        return f"{self._page(server)}&viewStateShareKey={self.lines}&compareRunsMode=TABLE"

    def _page(self, server: str) -> str:
        return f"{server.rstrip('/')}/#/experiments/{self.experiment}/runs?workflowType=machine_learning"


def publish(tracker: "Tracker", table: Table) -> Published:
    """Write the note, files, rows and views of a table; can be repeated. The table's runs must have been synced."""
    client = tracker.client
    experiment = tracker.headings.experiment(table.study)
    heading = tracker.headings.heading(table.study, table.profile, table.corpus)
    client.set_tag(heading, NOTE, _note(table.note))
    client.set_experiment_tag(experiment, NOTE, _described(table))
    client.set_experiment_tag(experiment, KIND, TRAINING)
    known_costs = client.get_run(heading).data.metrics
    for name, value in table.cost.items():
        if known_costs.get(f"{COST}{name}") != value:
            client.log_metric(heading, f"{COST}{name}", value)
    with tempfile.TemporaryDirectory(prefix="ablations-view-") as folder:
        for name, data in table.files.items():
            path = Path(folder) / name
            path.write_bytes(data)
            tracker.artifacts.keep(heading, path, f"{FOLDER}/{name}", fresh=True)
    about = {"study": table.study, "profile": table.profile, "corpus": table.corpus}
    rows = write_rows(client, experiment, heading, about, table.lines)
    every = _numbered(client, experiment, table) + [run.info.run_id for run in _runs_of(client, experiment, rows)]
    order = f"tags.`order.{table.study}`"
    both = f"attributes.run_id IN ({', '.join(repr(str(name)) for name in every)})"
    of_list = _state(table, both, order)
    if len(of_list) > VIEW_LENGTH:  # too many to list: use all runs below the parent run
        of_list = _state(table, f"tags.`mlflow.parentRunId` = '{heading}'", order)
    found = Published(experiment, *(digest([view, *about.values()]) for view in ("view", "list")))
    client.set_experiment_tag(experiment, VIEW + found.charts, _state(table, rows, order))
    client.set_experiment_tag(experiment, LISTS + found.charts, found.lines)
    client.set_experiment_tag(experiment, VIEW + found.lines, of_list)
    return found


def _numbered(client: Any, experiment: str, table: Table) -> list[str]:
    """MLflow's ids of the table's runs; each gets its place, after its row's.

    A row that shares a training has a run of its own for it (mlflow.py).
    """
    order, ids = f"order.{table.study}", []
    known: dict[tuple[str, str], Any] = {}
    for run in _runs_of(client, experiment):
        tags = run.data.tags
        if (tags.get("profile"), tags.get("corpus")) == (table.profile, table.corpus):
            known[tags.get("row", ""), tags.get("run_id") or tags.get(SHARED, "")] = run
    for number, (row, key, run_id) in enumerate(table.runs):
        if (key, run_id) in known:
            place, run = f"{row:05d}.{number:05d}", known[key, run_id]
            ids.append(run.info.run_id)
            if run.data.tags.get(order) != place:
                client.set_tag(run.info.run_id, order, place)
    return ids


def _runs_of(client: Any, experiment: str, search: str = "") -> list[Any]:
    found: list[Any] = []
    token = None
    while True:
        page = client.search_runs([experiment], search, max_results=1000, page_token=token)
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


def _described(table: Table) -> str:
    """What a reader of the experiment should know."""
    parts = [
        f"**{table.title}** (study `{table.study}`)" if table.title else f"Study `{table.study}`",
        "A run named like a row has its means over seeds (`….mean`), their standard deviation (`….sd`) and the change "
        "from base (`….change`; of the natural logarithm for perplexity). Runs named `row · seed` were trained. "
        "The parent run has the whole table as its description, and files for papers among its artifacts.",
        f"Latest table: {table.latest}.",
    ]
    return "\n\n".join(parts)[:VIEW_LENGTH]


def _state(table: Table, search: str, order: str) -> str:
    """The page's state: these runs in the table's order, its columns, charts of its metrics."""
    varying = list(dict.fromkeys(name for line in table.lines for name in line.params))
    columns = [*(f"params.`{to_key(name)}`" for name in varying), *(f"metrics.`{to_key(n)}`" for n in table.columns)]
    section = {"uuid": "table", "name": "The table", "display": True, "isReordered": False, "deleted": False,
               "columns": 2, "cardHeight": max(360, 160 + 20 * len(table.lines))}  # fmt: skip
    state = {
        "searchFilter": search,
        "orderByKey": order,
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "groupBy": None,
        "useGroupedValuesInCharts": True,
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "selectedColumns": columns,
        "columnOrder": columns,
        "columnWidths": {name: WIDTHS[name.partition(".")[0]] for name in columns},
        "compareRunSections": [{**section, "isGenerated": False}],
        "compareRunCharts": _charts(table, varying),
    }
    text = json.dumps(state, ensure_ascii=True, separators=(",", ":"))
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _charts(table: Table, varying: Sequence[str]) -> list[dict[str, Any]]:
    """Bars and lines of each metric; settings against the last metric of quality; parameters against it."""
    found = [_chart(chart, len(table.lines)) for chart in table.charts]
    quality = next((c.metric for c in reversed(table.charts) if not c.curve and c.metric != NUM_PARAMS), None)
    if quality is None:
        return found
    if any(NUM_PARAMS in line.metrics for line in table.lines):
        axes = {"xaxis": {"key": NUM_PARAMS, "type": "METRIC"}, "yaxis": {"key": to_key(quality), "type": "METRIC"}}
        words = f"{quality} against parameters"
        found.append({"type": "SCATTER", **_common("scatter", words), **axes, "runsCountToCompare": 1000})
    several = [name for name in varying if len({line.params.get(name) for line in table.lines}) > 1]
    if several:
        chosen = {"selectedParams": [to_key(name) for name in several], "selectedMetrics": [to_key(quality)]}
        found.append({"type": "PARALLEL", **_common("parallel", "Settings and scores"), **chosen, "showAllRuns": True})
    return found


def _common(name: str, title: str) -> dict[str, Any]:
    return {"uuid": digest(name), "metricSectionId": "table", "deleted": False, "isGenerated": False,
            "displayName": title}  # fmt: skip


def _chart(chart: Chart, rows: int) -> dict[str, Any]:
    key = to_key(chart.metric)
    common = {**_common(chart.metric, chart.title), "metricKey": key, "runsCountToCompare": max(10, rows)}
    if not chart.curve:
        return {"type": "BAR", **common}
    return {"type": "LINE", **common, "selectedMetricKeys": [key], "xAxisKey": "step", "yAxisKey": "metric",
            "scaleType": "log", "xAxisScaleType": "linear", "lineSmoothness": 0, "useGlobalXaxisKey": True}  # fmt: skip


def saved_views(tracker: "Tracker") -> dict[str, list[Published]]:
    """The saved views by study."""
    found: dict[str, list[Published]] = {}
    for experiment in tracker.client.search_experiments():
        lists = {name.removeprefix(LISTS): value for name, value in experiment.tags.items() if name.startswith(LISTS)}
        for name in sorted(experiment.tags):
            key = name.removeprefix(VIEW)
            if name.startswith(VIEW) and key not in lists.values():
                found.setdefault(experiment.name, []).append(
                    Published(experiment.experiment_id, key, lists.get(key, key))
                )
    return found
