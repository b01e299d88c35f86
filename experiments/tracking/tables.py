"""MLflow's SQLite database in a store: made by MLflow, filled without it, for a whole store at once.

MLflow's own calls take 140 ms of processor time per run, mostly in its ORM. The rows equal those of MLflow 3.17 (a test
compares them); `knows` checks that the tables are the expected ones.
"""

import contextlib
import math
import os
import sqlite3
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from experiments.jobs.queue.database import explain
from experiments.store.durable import folder_beside
from experiments.store.layout import Store
from experiments.store.sqlite_mode import journal_mode

COLUMNS = {
    "runs": "run_uuid name source_type source_name entry_point_name user_id status start_time end_time deleted_time "
    "source_version lifecycle_stage artifact_uri experiment_id",
    "tags": "key value run_uuid",
    "params": "key value run_uuid",
    "metrics": "key value timestamp run_uuid step is_nan",
    "latest_metrics": "key value timestamp step is_nan run_uuid",
    "datasets": "dataset_uuid experiment_id name digest dataset_source_type dataset_source dataset_schema "
    "dataset_profile",
    "inputs": "input_uuid source_type source_id destination_type destination_id step",
    "input_tags": "input_uuid name value",
}


def knows(path: Path) -> bool:
    """Whether the database has exactly the tables and columns that this file fills."""
    connection = sqlite3.connect(path)
    try:
        return all(
            {row[1] for row in connection.execute(f"PRAGMA table_info({table})")} == set(names.split())
            for table, names in COLUMNS.items()
        )
    finally:
        connection.close()


@dataclass
class _Latest:
    """A run's last value of a metric, as MLflow orders values."""

    step: int
    timestamp: int
    value: float
    is_nan: bool


class Tables:
    """The part of MlflowClient that writes runs; everything else goes to `client`, the real one.

    The database is complete once `close` has returned.
    """

    def __init__(self, path: Path, client: Any) -> None:
        self._client = client
        self._db = sqlite3.connect(path, isolation_level=None)
        self._db.execute("PRAGMA synchronous=OFF")  # an incomplete database is discarded
        self._latest: dict[str, dict[str, _Latest]] = {}
        self._datasets: dict[tuple[Any, ...], str] = {}
        self._locations: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        self._commit()  # otherwise the real client waits for this connection
        return getattr(self._client, name)

    def close(self) -> None:
        """Write the latest value of every metric, and close the database."""
        self._begin()
        for run_id, latest in self._latest.items():
            rows = [(key, m.value, m.timestamp, m.step, m.is_nan, run_id) for key, m in latest.items()]
            self._insert("latest_metrics", rows)
        self._commit()
        self._db.close()

    def create_run(self, experiment_id: str, *, start_time: int | None, tags: dict[str, str], run_name: str) -> Any:
        run_id = uuid.uuid4().hex
        if experiment_id not in self._locations:
            self._locations[experiment_id] = self.get_experiment(experiment_id).artifact_location
        uri = f"{self._locations[experiment_id]}/{run_id}/artifacts"
        start = int(time.time() * 1000) if start_time is None else start_time
        row = (run_id, run_name, "UNKNOWN", "", "", "unknown", "RUNNING", start, None, None, "", "active", uri)
        self._begin()
        self._insert("runs", [(*row, int(experiment_id))])
        self._insert("tags", [(*item, run_id) for item in (tags | {"mlflow.runName": run_name}).items()])
        return SimpleNamespace(info=SimpleNamespace(run_id=run_id, artifact_uri=uri, status="RUNNING"))

    def log_batch(
        self, run_id: str, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()
    ) -> None:
        self._begin()
        self._insert("tags", [(tag.key, tag.value, run_id) for tag in tags])
        self._insert("params", [(param.key, param.value, run_id) for param in params])
        latest, rows = self._latest.setdefault(run_id, {}), []
        for metric in metrics:
            nan = math.isnan(metric.value)
            value = 0.0 if nan else max(-sys.float_info.max, min(sys.float_info.max, metric.value))
            rows.append((metric.key, value, metric.timestamp, run_id, metric.step, nan))
            last = latest.get(metric.key)
            if last is None or (metric.step, metric.timestamp, value) > (last.step, last.timestamp, last.value):
                latest[metric.key] = _Latest(metric.step, metric.timestamp, value, nan)
        self._insert("metrics", rows)

    def log_inputs(self, run_id: str, datasets: Sequence[Any]) -> None:
        self._begin()
        [(experiment,)] = self._db.execute("SELECT experiment_id FROM runs WHERE run_uuid=?", (run_id,))
        for given in datasets:
            one = given.dataset
            key = (experiment, one.name, one.digest)
            if key not in self._datasets:
                self._datasets[key] = uuid.uuid4().hex
                self._insert("datasets", [(self._datasets[key], *key, one.source_type, one.source, None, None)])
            input_id = uuid.uuid4().hex
            self._insert("inputs", [(input_id, "DATASET", self._datasets[key], "RUN", run_id, 0)])
            self._insert("input_tags", [(input_id, tag.key, tag.value) for tag in given.tags])

    def set_terminated(self, run_id: str, status: str, end_time: int | None) -> None:
        self._begin()
        ended = int(time.time() * 1000) if end_time is None else end_time
        self._db.execute("UPDATE runs SET status=?, end_time=? WHERE run_uuid=?", (status, ended, run_id))

    def _insert(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        names = COLUMNS[table].split()
        marks = ",".join("?" * len(names))
        self._db.executemany(f"INSERT OR REPLACE INTO {table} ({','.join(names)}) VALUES ({marks})", rows)

    def _begin(self) -> None:
        if not self._db.in_transaction:
            self._db.execute("BEGIN")

    def _commit(self) -> None:
        if self._db.in_transaction:
            self._db.execute("COMMIT")


# --- MLflow's SQLite file in a store: its address, journal and server command
# mlflow is imported only to make its tables.


HOST = "127.0.0.1"  # the pages are for this machine only
ANEW = "Nothing is lost: `ablations ui --rebuild mlflow` writes it anew from the runs."
SCHEME = "mlflow-artifacts:/"  # relative to the folder that the server is started with


def database_uri(store: Store) -> str:
    return f"sqlite:///{store.mlflow_db}"


def explained(path: Path) -> contextlib.AbstractContextManager[None]:
    """Errors of MLflow's database as UserError: locked, full, read-only, damaged, of another version of MLflow."""
    return explain(path, "MLflow's database", ANEW)


def set_journal(path: Path) -> None:
    """Set the journal mode that fits the file's disk; an absent file is created empty.

    With WAL from the start, creating MLflow's 60 tables takes 2 s instead of 7 s.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        mode = journal_mode(path.parent)
        with contextlib.suppress(sqlite3.OperationalError):  # the file is in use: its mode is set already, or next time
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("CREATE TABLE IF NOT EXISTS made_by_ablations (version INTEGER)")
                connection.execute("DROP TABLE made_by_ablations")


def make_database(path: Path) -> None:
    """Create a database with MLflow's tables; set the journal mode of an existing one.

    The tables are created in a temporary file and renamed: MLflow's migrations are not one transaction, and it cannot
    use tables that a kill left incomplete. MLflow's empty experiment "Default" also gets a relative address.
    """
    if path.exists():
        set_journal(path)
        return
    with folder_beside(path.parent, ".mlflow-") as folder:
        aside = folder / path.name
        set_journal(aside)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        SqlAlchemyStore(f"sqlite:///{aside}", SCHEME).engine.dispose()
        if not path.exists():  # otherwise another process was faster, and its database may already contain runs
            aside.replace(path)


def ui_command(store: Store, port: int) -> list[str]:
    """The command of a local MLflow server on a store."""
    with explained(store.mlflow_db):
        set_journal(store.mlflow_db)
    server = [sys.executable, "-P", "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    return [*server, "--backend-store-uri", database_uri(store), "--artifacts-destination", str(store.artifacts)]
