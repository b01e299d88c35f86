"""MLflow's SQLite file in a store: where it is, its journal, the server that shows it. Does not import mlflow."""

import contextlib
import sqlite3
import sys
from pathlib import Path

from experiments.store.layout import Store
from experiments.store.sqlite_mode import journal_mode

HOST = "127.0.0.1"  # the pages are for this machine only
SCHEME = "mlflow-artifacts:/"  # relative to the folder that the server is started with


def database_uri(store: Store) -> str:
    return f"sqlite:///{store.mlflow_db}"


def set_journal(path: Path) -> None:
    """The journal that is right for the file's disk; an absent file is made, empty.

    With WAL from the first moment MLflow's 60 tables take 2 s to make instead of 7.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        mode = journal_mode(path.parent)
        with contextlib.suppress(sqlite3.OperationalError):  # somebody is reading: it is right already, or next time
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("CREATE TABLE IF NOT EXISTS made_by_ablations (version INTEGER)")
                connection.execute("DROP TABLE made_by_ablations")


def ui_command(store: Store, port: int) -> list[str]:
    """The command that shows a store in a browser, on this machine only."""
    set_journal(store.mlflow_db)
    server = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    return [*server, "--backend-store-uri", database_uri(store), "--artifacts-destination", str(store.artifacts)]
