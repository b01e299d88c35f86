"""Read all runs from MLflow's database as values that can be compared."""

import contextlib
import sqlite3
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.tracking.database import import_mlflow


def content_of(database: Path) -> dict[str, set[tuple[Any, ...]]]:
    """Return `content` of a copy of the database.

    A copy is needed because MLflow keeps a file open for a while, even after `rebuild` has replaced it.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "mlflow.db"
        with contextlib.closing(sqlite3.connect(database)) as source, contextlib.closing(sqlite3.connect(copy)) as to:
            source.backup(to)
        return content(import_mlflow().MlflowClient(f"sqlite:///{copy}"))


def content(client: Any) -> dict[str, set[tuple[Any, ...]]]:
    """Return runs, tags, parameters, metric points and inputs by run_id, without the random ids that MLflow assigns.

    client: an MlflowClient. Raise AssertionError if MLflow has a duplicate row.
    """
    experiments = {one.experiment_id: one.name for one in client.search_experiments()}
    runs = client.search_runs([*experiments], max_results=1000)
    names = {run.info.run_id: _name(run.data.tags) for run in runs}
    found: dict[str, list[tuple[Any, ...]]] = {
        table: [] for table in ("runs", "tags", "params", "metrics", "latest", "inputs")
    }
    for run in runs:
        info, data, name = run.info, run.data, names[run.info.run_id]
        of = experiments[info.experiment_id]
        found["runs"].append((name, info.run_name, info.status, info.start_time, info.end_time, of))
        found["tags"] += [(name, key, names.get(value, value)) for key, value in data.tags.items()]
        found["params"] += [(name, *param) for param in data.params.items()]
        found["latest"] += [(name, key, str(value)) for key, value in data.metrics.items()]
        for key in data.metrics:
            history = client.get_metric_history(info.run_id, key)
            found["metrics"] += [(name, key, str(point.value), point.timestamp, point.step) for point in history]
        for one in run.inputs.dataset_inputs:
            tags = tuple((tag.key, tag.value) for tag in one.tags)
            found["inputs"].append((name, one.dataset.name, one.dataset.digest, one.dataset.source, tags))
    for table, rows in found.items():
        assert len(set(rows)) == len(rows), f"a row of {table} twice"
    return {table: set(rows) for table, rows in found.items()}


def _name(tags: Mapping[str, str]) -> str:
    return tags.get("run_id") or tags.get("heading") or tags.get("training", "means") + tags["study"] + tags["row"]
