"""A table's columns on MLflow's page, as a saved view.

A saved view is an experiment's tag in the page's internal format (MLflow 3.17: JSON of the page's state, deflated). It
is no public interface. This file may be deleted with its one use: the links of page.py open the same runs in the same
order, with the browser's columns.
"""

import base64
import json
import zlib
from typing import Any

from experiments.tracking.database import to_key
from experiments.tracking.page import ORDER, Published, Table

VIEW = "mlflow.sharedViewState."
NAME, CREATED = "attributes.`Run Name`", "runDateAndNestInfo"  # columns that the page always has
CREATED_WIDTH, INDENT = 142, 85  # pixels; a run's name begins there below its row


def link(published: Published, server: str) -> str:
    """The address of the list, once `save` has written its view."""
    return f"{published.page(server)}&viewStateShareKey={published.table}&compareRunsMode=TABLE"


def save(client: Any, published: Published, table: Table) -> None:
    """Write the view of a published table."""
    client.set_experiment_tag(published.experiment, f"{VIEW}{published.table}", _state(table, published.rows_and_runs))


def _state(table: Table, search: str) -> str:
    """The page's state: these runs in the table's order, its columns: values and changes, settings, the rest."""
    varying = list(dict.fromkeys(name for line in table.lines for name in line.params))
    heads = [("metrics", to_key(name)) for name in table.columns]
    heads += [("params", to_key(name)) for name in varying]
    heads += [("metrics", to_key(name)) for name in table.last_columns]
    widths = {f"{kind}.`{head}`": _width(head) for kind, head in heads}
    longest = max((len(f"{line.key} · seed 1") for line in table.lines), default=0)
    whole = {NAME: min(280, max(180, INDENT + 7 * longest)), CREATED: CREATED_WIDTH}
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
    }
    text = json.dumps(state, ensure_ascii=True, separators=(",", ":"))
    return "deflate;" + base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _width(head: str) -> int:
    """Pixels of a column whose head and numbers are not cut."""
    return max(64, 30 + sum(10 if sign.isupper() or sign in "mw" else 8 for sign in head))
