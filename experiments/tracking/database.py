"""MLflow's SQLite file in a store: its address, journal and server command. mlflow is imported to make its tables."""

import contextlib
import os
import sqlite3
import sys
from pathlib import Path

from experiments.jobs.queue.sqlite_errors import explain
from experiments.store.durable import folder_beside
from experiments.store.layout import Store
from experiments.store.sqlite_mode import journal_mode

HOST = "127.0.0.1"  # the pages are for this machine only
ANEW = "Nothing is lost: `ablations rebuild` writes it anew from the runs."
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
