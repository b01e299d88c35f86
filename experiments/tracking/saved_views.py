"""A table's columns and charts on MLflow's page, as saved views.

A saved view is an experiment's tag in the page's internal format (MLflow 3.17: JSON of the page's state, deflated). It
is no public interface. This file may be deleted with its one use: the links of page.py open the same runs in the same
order, with the browser's columns.
"""

import base64
import json
import zlib
from collections.abc import Sequence
from typing import Any

from experiments.identity import digest
from experiments.tracking.database import to_key
from experiments.tracking.page import ORDER, Chart, Published, Table
from experiments.tracking.record import NUM_PARAMS

VIEW = "mlflow.sharedViewState."
NAME, CREATED = "attributes.`Run Name`", "runDateAndNestInfo"  # columns that the page always has
CREATED_WIDTH, INDENT = 142, 85  # pixels; a run's name begins there below its row


def links(published: Published, server: str) -> tuple[str, str]:
    """The addresses of the charts and of the list, once `save` has written them."""
    page = f"{published.page(server)}&viewStateShareKey={published.table}"
    return f"{page}c&compareRunsMode=CHART", f"{page}l&compareRunsMode=TABLE"


def save(client: Any, published: Published, table: Table) -> None:
    """Write the views of a published table."""
    for kind, search in (("c", published.rows), ("l", published.rows_and_runs)):
        client.set_experiment_tag(published.experiment, f"{VIEW}{published.table}{kind}", _state(table, search))


def _state(table: Table, search: str) -> str:
    """The page's state: these runs in the table's order, its columns (metrics first), charts of its metrics."""
    varying = list(dict.fromkeys(name for line in table.lines for name in line.params))
    heads = [("metrics", to_key(name)) for name in table.columns] + [("params", to_key(name)) for name in varying]
    widths = {f"{kind}.`{head}`": _width(head) for kind, head in heads}
    longest = max((len(f"{line.key} · seed 1") for line in table.lines), default=0)
    whole = {NAME: min(280, max(180, INDENT + 7 * longest)), CREATED: CREATED_WIDTH}
    section = {"uuid": "table", "name": "The table", "display": True, "isReordered": False, "deleted": False,
               "columns": 2, "cardHeight": max(360, 160 + 20 * len(table.lines))}  # fmt: skip
    state = {
        "searchFilter": search,
        "orderByKey": ORDER,
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "groupBy": None,
        "useGroupedValuesInCharts": True,
        "runsHiddenMode": "SHOW_ALL",
        "hideEmptyCharts": True,
        "selectedColumns": list(widths),
        "columnOrder": [NAME, CREATED, *widths],
        "columnWidths": whole | widths,
        "compareRunSections": [{**section, "isGenerated": False}],
        "compareRunCharts": _charts(table, varying),
    }
    text = json.dumps(state, ensure_ascii=True, separators=(",", ":"))
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _width(head: str) -> int:
    """Pixels of a column whose head and numbers are not cut."""
    return max(64, 30 + sum(10 if sign.isupper() or sign in "mw" else 8 for sign in head))


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
