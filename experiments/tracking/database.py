"""MLflow's database in a store: its SQLite file, its address, its journal and its server command.

mlflow.py writes runs to the database. Importing MLflow takes over a second, so this module imports it only to create or
write a database.
"""

import contextlib
import importlib.metadata
import logging
import os
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.jobs.queue.sqlite_errors import explain
from experiments.store.durable import folder_beside
from experiments.store.layout import Store
from experiments.store.sqlite_mode import journal_mode
from experiments.store.user_cache import UserCache
from experiments.tracking import written

HOST = "127.0.0.1"  # the server is accessible only from this machine
ANEW = "No result is lost. Write the database again with `ablations ui --rebuild mlflow`."
SCHEME = "mlflow-artifacts:/"  # prefix of an artifact's address, which is relative to the server's folder of artifacts


def import_mlflow() -> Any:
    """Import MLflow without telemetry, and without log messages on runs, migrations and errors that it also raises."""
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT="true")
    # Seconds after which MLflow reopens a connection, which may be to a database that was replaced or removed.
    os.environ.setdefault("MLFLOW_SQLALCHEMYSTORE_POOL_RECYCLE", "1")
    import mlflow

    for name, level in (("mlflow", "WARNING"), ("alembic", "WARNING"), ("mlflow.store.db.utils", "CRITICAL")):
        logging.getLogger(name).setLevel(level)
    return mlflow


def database_uri(store: Store) -> str:
    """Return MLflow's address of the database of a store."""
    return f"sqlite:///{store.mlflow_db}"


def explained(path: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context that turns errors of MLflow's database into UserError.

    The causes are a locked, full, read-only or damaged database, or a database of another version of MLflow.
    """
    return explain(path, "MLflow's database", ANEW)


def set_journal(path: Path) -> None:
    """Set the journal mode that is suitable for the file's disk. A missing file is created empty.

    If WAL is set before MLflow creates its 60 tables, creating them takes 2 s instead of 7 s.
    """
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        mode = journal_mode(path.parent)
        with contextlib.suppress(sqlite3.OperationalError):  # the file is in use, so keep its mode
            if connection.execute("PRAGMA journal_mode").fetchone()[0].upper() != mode:
                connection.execute(f"PRAGMA journal_mode={mode}")
                connection.execute("CREATE TABLE IF NOT EXISTS made_by_ablations (version INTEGER)")
                connection.execute("DROP TABLE made_by_ablations")


def merge_journal(path: Path) -> None:
    """Merge the journal into the database's file, so that the file is complete without the journal."""
    with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def make_database(path: Path) -> None:
    """Create a database with MLflow's tables, or set the journal mode of an existing database.

    The tables are created in a temporary file, which is then renamed. MLflow's migrations are not one transaction, and
    MLflow cannot use tables that a kill left incomplete. MLflow's empty experiment "Default" gets a relative address.
    The SQL text of the tables is cached for the user's next store, because the migrations take 2 s.
    """
    if path.exists():
        set_journal(path)
        return
    with folder_beside(path.parent, ".mlflow-") as folder:
        aside = folder / path.name
        set_journal(aside)
        version = importlib.metadata.version("mlflow")
        with UserCache("mlflow-tables-1") as cache, contextlib.closing(sqlite3.connect(aside)) as database:
            if isinstance(tables := cache.get(version), str):
                database.executescript(tables)
            else:
                import_mlflow()
                from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

                SqlAlchemyStore(f"sqlite:///{aside}", SCHEME).engine.dispose()
                cache.put(version, "\n".join(database.iterdump()))
        if not path.exists():  # if another process was faster, its database may already contain runs
            written.begin(path, {})  # replaces the list of an earlier database
            aside.replace(path)


def ui_command(store: Store, port: int) -> list[str]:
    """Return the command that starts a local MLflow server for a store."""
    with explained(store.mlflow_db):
        set_journal(store.mlflow_db)
    server = [sys.executable, "-P", "-m", "mlflow", "server", "--host", HOST, "--port", str(port), "--workers", "1"]
    return [*server, "--backend-store-uri", database_uri(store), "--artifacts-destination", str(store.artifacts)]


MOST, MOST_PARAMS, MOST_TAGS = 1000, 100, 100  # MLflow's limits on one call: all items, parameters, tags


def log(
    client: Any, mlflow_id: str, *, metrics: Sequence[Any] = (), params: Sequence[Any] = (), tags: Sequence[Any] = ()
) -> None:
    """Log metrics, parameters and tags of a run in as few calls as MLflow's limits allow.

    The calls are not one transaction. To write an item after other items, call this function a second time.
    """
    while metrics or params or tags:
        count = MOST - len(params[:MOST_PARAMS]) - len(tags[:MOST_TAGS])
        client.log_batch(
            mlflow_id,
            metrics=metrics[:count],
            params=params[:MOST_PARAMS],
            tags=tags[:MOST_TAGS],
            synchronous=True,  # overrides MLFLOW_ENABLE_ASYNC_LOGGING
        )
        metrics, params, tags = metrics[count:], params[MOST_PARAMS:], tags[MOST_TAGS:]
