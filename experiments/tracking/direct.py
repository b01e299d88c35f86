"""MLflow's SQLite file, written by SQL: a run costs 3 ms of CPU time in place of 45, and MLflow is not imported.

MLflow's own client takes 2 s to import, and a session of SQLAlchemy, a search and a commit for each call. Its tables
are no public interface: this writes only a database whose tables have the version TABLES. Others, servers, and what is
rare belong to MLflow's own client. tests/unit/experiments/test_tracking_whole.py compares what both write.
"""

import functools
import json
import logging
import math
import os
import re
import sqlite3
import sys
import time
import uuid
from collections import namedtuple
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

TABLES = "dc11669786a5"  # of MLflow 3.17, in its table alembic_version
WAIT_S = 5.0  # for a lock, as MLflow waits
_LARGEST = sys.float_info.max  # in place of infinity, as MLflow writes it
_BY_TAG = re.compile(r"tags\.(\w+) = '([^']*)'")


def import_mlflow() -> Any:
    """MLflow, without telemetry and without its messages on migrations and on errors that it also raises."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    import mlflow

    for name, level in (("mlflow", "WARNING"), ("alembic", "WARNING"), ("mlflow.store.db.utils", "CRITICAL")):
        logging.getLogger(name).setLevel(level)
    return mlflow


def client_of(database: Path) -> Any:
    """The quickest client of a database that exists."""
    connection = sqlite3.connect(database, WAIT_S, isolation_level=None)
    version = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    if version == [(TABLES,)] and sqlite3.sqlite_version_info >= (3, 35):  # which has RETURNING
        return Direct(connection, f"sqlite:///{database}")
    connection.close()
    return import_mlflow().MlflowClient(tracking_uri=f"sqlite:///{database}")


class Direct:
    """The calls of MlflowClient that write runs, with its arguments; all others go to MlflowClient itself.

    Each is a transaction. Those in a `with` block are one, which ends early where MLflow itself is called.
    """

    # in place of mlflow.entities
    Metric = namedtuple("Metric", "key value timestamp step")
    Param = namedtuple("Param", "key value")
    RunTag = namedtuple("RunTag", "key value")
    InputTag = namedtuple("InputTag", "key value")
    Dataset = namedtuple("Dataset", "name digest source_type source")
    DatasetInput = namedtuple("DatasetInput", "dataset tags")

    def __init__(self, connection: sqlite3.Connection, uri: str) -> None:
        self._database, self._uri = connection, uri
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA synchronous=NORMAL")  # a power cut may lose the last runs, which are written again

    def __enter__(self) -> Self:
        if not self._database.in_transaction:
            self._database.execute("BEGIN IMMEDIATE")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._database.in_transaction:
            self._database.execute("ROLLBACK" if kind else "COMMIT")

    @functools.cached_property
    def whole(self) -> Any:
        """MLflow's own client of the same database."""
        return import_mlflow().MlflowClient(tracking_uri=self._uri)

    def __getattr__(self, name: str) -> Any:
        self.__exit__(None)
        return getattr(self.whole, name)

    def close(self) -> None:
        """Close the database, and merge its journal into it."""
        self._database.close()
        if "whole" in vars(self):
            self.whole._tracking_client.store.engine.dispose()

    def _read(self, query: str, *values: Any) -> list[Any]:
        return self._database.execute(query, values).fetchall()

    def search_experiments(self) -> list[Any]:
        return [*map(_entity, self._read("SELECT * FROM experiments WHERE lifecycle_stage = 'active'"))]

    def get_experiment_by_name(self, name: str) -> Any:
        rows = self._read("SELECT * FROM experiments WHERE name = ? AND workspace = 'default'", name)
        return _entity(rows[0]) if rows else None

    def create_experiment(self, name: str, artifact_location: str) -> str:
        columns = "(name, artifact_location, lifecycle_stage, creation_time, last_update_time)"
        command = f"INSERT INTO experiments {columns} VALUES (?, ?, 'active', ?, ?) RETURNING experiment_id"
        return str(self._read(command, name, artifact_location, _now(), _now())[0][0])

    def search_runs(self, experiments: Sequence[Any], search: str, **paging: Any) -> Any:
        """The runs with a tag, without their metrics, if the search is for one tag alone."""
        if (tag := _BY_TAG.fullmatch(search)) is None:
            return self.__getattr__("search_runs")(experiments, search, **paging)
        query = (
            "SELECT runs.* FROM tags JOIN runs USING (run_uuid) WHERE key = ? AND value = ? AND lifecycle_stage = "
            "'active' AND experiment_id IN (SELECT value FROM json_each(?)) ORDER BY start_time DESC, run_uuid"
        )
        return [*map(self._run, self._read(query, tag[1], tag[2], json.dumps([*map(int, experiments)])))]

    def _run(self, row: sqlite3.Row) -> Any:
        params = dict(self._read("SELECT key, value FROM params WHERE run_uuid = ?", row["run_uuid"]))
        tags = dict(self._read("SELECT key, value FROM tags WHERE run_uuid = ?", row["run_uuid"]))
        info = _entity(row, run_id=row["run_uuid"], run_name=row["name"])
        return SimpleNamespace(info=info, data=SimpleNamespace(params=params, tags=tags))

    def create_run(self, experiment: str, start_time: int | None, tags: dict[str, str], run_name: str) -> Any:
        mlflow_id = uuid.uuid4().hex
        command = (
            "INSERT INTO runs SELECT ?, ?, 'UNKNOWN', '', '', 'unknown', 'RUNNING', ?, NULL, '', 'active', "
            "artifact_location || ?, experiment_id, NULL FROM experiments WHERE experiment_id = ? RETURNING *"
        )
        place = f"/{mlflow_id}/artifacts"
        [made] = self._read(command, mlflow_id, run_name, start_time or _now(), place, int(experiment))
        self._database.executemany("INSERT INTO tags VALUES (?, ?, ?)", [(*tag, mlflow_id) for tag in tags.items()])
        self._read("INSERT INTO tags VALUES ('mlflow.runName', ?, ?)", run_name, mlflow_id)
        return self._run(made)

    def log_batch(
        self, mlflow_id: str, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()
    ) -> None:
        """Add points and parameters; set tags. A metric's latest value is that of its largest step, then time."""
        points = [
            (m.key, max(-_LARGEST, min(_LARGEST, 0.0 if math.isnan(m.value) else m.value)), m.timestamp, m.step,
             math.isnan(m.value), mlflow_id)
            for m in metrics
        ]  # fmt: skip
        columns = "(key, value, timestamp, step, is_nan, run_uuid) VALUES (?, ?, ?, ?, ?, ?)"
        newer = "(excluded.step, excluded.timestamp, excluded.value) > (step, timestamp, value)"
        fresh = "value = excluded.value, timestamp = excluded.timestamp, step = excluded.step, is_nan = excluded.is_nan"
        latest = f"ON CONFLICT DO UPDATE SET {fresh} WHERE {newer}"
        write = self._database.executemany
        write("INSERT INTO params VALUES (?, ?, ?)", [(p.key, p.value, mlflow_id) for p in params])
        write(f"INSERT OR IGNORE INTO metrics {columns}", points)
        write(f"INSERT INTO latest_metrics {columns} {latest}", points)
        write("INSERT OR REPLACE INTO tags VALUES (?, ?, ?)", [(t.key, t.value, mlflow_id) for t in tags])

    def log_inputs(self, mlflow_id: str, datasets: Sequence[Any]) -> None:
        """Say which data sets a run reads; each is there once in an experiment."""
        for data, tags in datasets:
            made = "SELECT ?, experiment_id, ?, ?, ?, ?, NULL, NULL FROM runs WHERE run_uuid = ?"
            self._read(f"INSERT OR IGNORE INTO datasets {made}", uuid.uuid4().hex, *data, mlflow_id)
            edge = (
                "SELECT ?, 'DATASET', dataset_uuid, 'RUN', run_uuid, 0 FROM datasets d JOIN runs USING (experiment_id) "
                "WHERE d.name = ? AND digest = ? AND run_uuid = ? RETURNING input_uuid"
            )
            added = self._read(f"INSERT OR IGNORE INTO inputs {edge}", uuid.uuid4().hex, *data[:2], mlflow_id)
            rows = [(edge_id, tag.key, tag.value) for (edge_id,) in added for tag in tags]
            self._database.executemany("INSERT INTO input_tags VALUES (?, ?, ?)", rows)

    def update_run(self, mlflow_id: str, status: str | None = None, name: str | None = None) -> None:
        self._read("UPDATE runs SET status = ? WHERE run_uuid = ?", status, mlflow_id) if status else None
        if name:
            self._read("UPDATE runs SET name = ? WHERE run_uuid = ?", name, mlflow_id)
            self.log_batch(mlflow_id, tags=[self.RunTag("mlflow.runName", name)])

    def set_terminated(self, mlflow_id: str, status: str, end_time: int | None = None) -> None:
        command = "UPDATE runs SET status = ?, end_time = ? WHERE run_uuid = ?"
        self._read(command, status, end_time or _now(), mlflow_id)

    def delete_tag(self, mlflow_id: str, key: str) -> None:
        self._read("DELETE FROM tags WHERE run_uuid = ? AND key = ?", mlflow_id, key)


def _entity(row: sqlite3.Row, **more: Any) -> Any:
    """A row of MLflow's table with its columns as attributes."""
    return SimpleNamespace(**dict(row), **more)


def _now() -> int:
    return int(time.time() * 1000)
