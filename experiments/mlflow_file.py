"""MLflow's SQLite file, made fit for a store: its journal, and no absolute path inside. Does not import mlflow."""

import contextlib
import sqlite3
from pathlib import Path

from experiments.journal import journal_mode
from experiments.store import Store

SCHEME = "mlflow-artifacts:/"  # relative to the folder that the server is started with


def database_uri(store: Store) -> str:
    return f"sqlite:///{store.mlflow_db}"


def make_database(path: Path) -> None:
    """An empty database in the journal mode that is right for its disk; MLflow makes the tables.

    With WAL from the first moment MLflow's 60 tables take 2 s to make instead of 7.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        mode = journal_mode(path.parent)
        with contextlib.suppress(sqlite3.OperationalError):  # somebody is reading: it is right already, or next time
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("CREATE TABLE IF NOT EXISTS made_by_ablations (version INTEGER)")
                connection.execute("DROP TABLE made_by_ablations")


def move_default(path: Path) -> None:
    """MLflow gives its own empty experiment "Default" an absolute address in the working directory."""
    with contextlib.closing(sqlite3.connect(path, timeout=30)) as connection, connection:
        connection.execute(
            f"UPDATE experiments SET artifact_location='{SCHEME}default' "
            f"WHERE experiment_id=0 AND artifact_location NOT LIKE '{SCHEME}%'"
        )
