"""Publish a table in MLflow: a note with the table, its files, links, and a run per row with its trained runs below it.

The link to the list of rows contains a search and the sort order, so that rows have the order of the table. The link
does not set the columns; MLflow's page chooses them. The parameter `workflowType` opens MLflow's mode for model
training; without it, MLflow opens the mode for traces of language models. This module imports mlflow only when
`publish` is called.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from experiments.tracking.database import log
from experiments.tracking.mlflow_keys import to_key
from experiments.tracking.record import COST
from experiments.tracking.views import PARENT, ROWS_OF, SHARED, TABLE, RowLine, write_rows

if TYPE_CHECKING:
    from experiments.tracking.mlflow import Tracker

NOTE, NOTE_LENGTH = "mlflow.note.content", 7900  # MLflow allows 8,000 characters
DESCRIPTION_LENGTH = 4900  # MLflow allows 5,000 characters in an experiment's tag
# Sort key of the list. Start times encode the order of rows, and MLflow nests runs only in a list sorted by start time.
ORDER = "attributes.start_time"
FOLDER = "table"  # folder of the files in the artifacts of the heading


@dataclass(frozen=True)
class ScoredRun:
    """A trained run of a row, with its scores under the column names of the table."""

    row: str
    run_id: str
    scores: Mapping[str, float]  # name of the column → score; NaN if the score is missing


@dataclass(frozen=True)
class Table:
    """A printed table and its runs, in the order of the table's rows."""

    study: str
    profile: str
    corpus: str
    title: str  # Markdown
    latest: str  # profile and corpus, in Markdown
    runs: Sequence[ScoredRun]  # sorted by row, then by seed
    lines: Sequence[RowLine]
    note: str  # Markdown
    files: Mapping[str, bytes]
    cost: Mapping[str, float]  # cost of all runs, for metrics of the heading


@dataclass(frozen=True)
class Published:
    """A published table in MLflow."""

    experiment: str
    table: str  # value of the tag TABLE of its rows and their trained runs

    @property
    def rows_and_runs(self) -> str:
        """The MLflow search that finds the rows of the table and their trained runs."""
        return f"tags.{TABLE} = '{self.table}'"

    def page(self, server: str) -> str:
        """Return the address of the experiment's runs."""
        return f"{server.rstrip('/')}/#/experiments/{self.experiment}/runs?workflowType=machine_learning"

    def listing(self, server: str) -> str:
        """Return the address of the list of rows with their trained runs."""
        choice = {"searchFilter": self.rows_and_runs, "orderByKey": ORDER, "orderByAsc": "true"}
        return f"{self.page(server)}&{urlencode(choice | {'startTime': 'ALL', 'compareRunsMode': 'TABLE'})}"


def publish(tracker: "Tracker", table: Table) -> Published:
    """Write or update the note, files and rows of a table. The trained runs of the table must have been synced."""
    from mlflow.entities import Metric, RunTag

    client = tracker.client
    experiment = tracker.headings.experiment(table.study)
    heading = client.get_run(tracker.headings.heading(table.study, table.profile, table.corpus))
    now, costs = int(time.time() * 1000), {f"{COST}{name}": value for name, value in table.cost.items()}
    log(
        client,
        heading.info.run_id,
        metrics=[Metric(n, value, now, 0) for n, value in costs.items() if heading.data.metrics.get(n) != value],
        tags=[RunTag(NOTE, _note(table.note))],
    )
    client.set_experiment_tag(experiment, NOTE, _described(table))
    with tempfile.TemporaryDirectory(prefix="ablations-view-") as folder:
        for name, data in table.files.items():
            path = Path(folder) / name
            path.write_bytes(data)
            tracker.artifacts.keep(heading.info.run_id, path, f"{FOLDER}/{name}", fresh=True)
    published = Published(experiment, heading.data.tags["heading"])
    about = {"study": table.study, "profile": table.profile, "corpus": table.corpus}
    rows = write_rows(client, experiment, heading, about, table.lines)
    _nest(client, published, table, heading.info.run_id, rows)
    return published


def _nest(client: Any, published: Published, table: Table, heading: str, rows: Mapping[str, str]) -> None:
    """Nest the runs of the table, with their scores, below their rows. Move runs that left the table to the heading.

    For a row that shares a training, this nests the view of the row (mlflow.py).
    """
    from mlflow.entities import Metric, RunTag

    runs = {(run.row, run.run_id): run for run in table.runs}
    now = int(time.time() * 1000)
    for known in runs_of(client, published.experiment):
        tags, scores = known.data.tags, known.data.metrics
        if (tags.get("profile"), tags.get("corpus")) != (table.profile, table.corpus) or ROWS_OF in tags:
            continue
        run = runs.get((tags.get("row", ""), tags.get("run_id") or tags.get(SHARED, "")))
        if run is not None:
            wanted = {TABLE: published.table, PARENT: rows[run.row]}
            values = {to_key(name): value for name, value in run.scores.items()}
        elif TABLE in tags:
            wanted, values = {TABLE: "", PARENT: heading}, {}
        else:
            continue
        changed = [RunTag(name, value) for name, value in wanted.items() if tags.get(name) != value]
        points = [Metric(n, value, now, 0) for n, value in values.items() if str(value) != str(scores.get(n, math.nan))]
        if changed or points:
            log(client, known.info.run_id, metrics=points, tags=changed)


def runs_of(client: Any, experiment: str, search: str = "", **order: Any) -> list[Any]:
    """Return all runs of an experiment that a search finds."""
    found: list[Any] = []
    token = None
    while True:
        page = client.search_runs([experiment], search, max_results=1000, page_token=token, **order)
        found += page
        token = page.token
        if not token:
            return found


def _note(text: str) -> str:
    """Cut a text to NOTE_LENGTH at the end of a line."""
    if len(text) <= NOTE_LENGTH:
        return text
    rest = f"\n\n… the whole table is among this run's artifacts, in `{FOLDER}/`."
    return text[: NOTE_LENGTH - len(rest)].rpartition("\n")[0] + rest


def _described(table: Table) -> str:
    """Return the description of a table's experiment in MLflow."""
    parts = [
        f"**{table.title}** (study `{table.study}`)" if table.title else f"Study `{table.study}`",
        "A run named after a row has the means over seeds under the table's column names, their standard deviations "
        "(`… sd`), and the change from base (`Δ…`; of the natural logarithm for perplexity). Runs named `row · seed` "
        "were trained. The run named after the table has the full table as its description, and files for papers among "
        "its artifacts.",
        f"Latest table: {table.latest}.",
    ]
    return "\n\n".join(parts)[:DESCRIPTION_LENGTH]
