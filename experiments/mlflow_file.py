"""MLflow's SQLite file, made fit for a store: whole or not there, its journal, no absolute path inside."""

import contextlib
import logging
import os
import sqlite3
import tempfile
from pathlib import Path

from experiments.journal import journal_mode
from experiments.store import Store

SCHEME = "mlflow-artifacts:/"  # relative to the folder that the server is started with


def database_uri(store: Store) -> str:
    return f"sqlite:///{store.mlflow_db}"


def make_database(path: Path) -> None:
    """A database with MLflow's tables, or the one that is there in the journal mode that is right for its disk.

    The tables are made aside and renamed: MLflow's migrations are not one transaction, and it can never go on with
    tables that a kill has left half made. Its own empty experiment "Default" gets a relative address too.
    """
    if path.exists():
        _set_journal(path)
        return
    with tempfile.TemporaryDirectory(prefix=".mlflow-", dir=path.parent, ignore_cleanup_errors=True) as folder:
        aside = Path(folder) / path.name
        _set_journal(aside)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        for name in ("mlflow", "alembic"):  # migrations are not the user's news
            logging.getLogger(name).setLevel(logging.WARNING)
        SqlAlchemyStore(f"sqlite:///{aside}", SCHEME).engine.dispose()
        if not path.exists():  # else another process was faster, and its database may hold runs by now
            aside.replace(path)


def _set_journal(path: Path) -> None:
    """With WAL from the first moment MLflow's 60 tables take 2 s to make instead of 7."""
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        mode = journal_mode(path.parent)
        with contextlib.suppress(sqlite3.OperationalError):  # somebody is reading: it is right already, or next time
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("CREATE TABLE IF NOT EXISTS made_by_ablations (version INTEGER)")
                connection.execute("DROP TABLE made_by_ablations")
