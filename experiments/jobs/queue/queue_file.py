"""Open the queue's SQLite file. Create it if it is missing, and convert it if it is of version 0.1.0."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from experiments.errors import UserError, explain_os_errors
from experiments.jobs.queue import older
from experiments.jobs.queue.sqlite_errors import REBUILD, explain
from experiments.store import locks
from experiments.store.durable import folder_beside, name_new
from experiments.store.sqlite_mode import journal_mode

VERSION = 10
BUSY_TIMEOUT_S = 30.0
APPLICATION = 0x41424C51  # "ABLQ", which marks a queue of this program

SCHEMA = """
CREATE TABLE jobs (
    run_id TEXT PRIMARY KEY, spec TEXT NOT NULL, state TEXT NOT NULL, seed INTEGER NOT NULL,
    priority INTEGER NOT NULL, cost REAL NOT NULL, inputs_key TEXT NOT NULL, kind TEXT NOT NULL DEFAULT '',
    pinned TEXT NOT NULL, attempt INTEGER NOT NULL DEFAULT 0, best INTEGER NOT NULL DEFAULT 0,
    stalls INTEGER NOT NULL DEFAULT 0, step INTEGER, total INTEGER, doing TEXT NOT NULL DEFAULT '',
    slot TEXT NOT NULL DEFAULT '', error TEXT NOT NULL DEFAULT '', error_class TEXT NOT NULL DEFAULT '',
    request TEXT NOT NULL DEFAULT '', tracked INTEGER NOT NULL DEFAULT 0,
    queued REAL NOT NULL, started REAL, ended REAL,
    memory_gb REAL NOT NULL DEFAULT 0, devices INTEGER NOT NULL DEFAULT 1, alone INTEGER NOT NULL DEFAULT 0,
    hangs INTEGER NOT NULL DEFAULT 0, left_s REAL, gpu_memory_gb REAL NOT NULL DEFAULT 0,
    signature TEXT NOT NULL DEFAULT '', held TEXT NOT NULL DEFAULT '', turn INTEGER NOT NULL DEFAULT 0
) WITHOUT ROWID;
CREATE INDEX by_turn ON jobs (state, priority DESC, turn, cost DESC, queued, run_id);
CREATE TABLE members (
    run_id TEXT NOT NULL, study TEXT NOT NULL, profile TEXT NOT NULL, corpus TEXT NOT NULL, row TEXT NOT NULL,
    grp TEXT NOT NULL, PRIMARY KEY (run_id, study, profile, corpus, row)
) WITHOUT ROWID;
CREATE TABLE attempts (
    run_id TEXT NOT NULL, number INTEGER NOT NULL, slot TEXT NOT NULL, ref TEXT NOT NULL DEFAULT '',
    started REAL NOT NULL, ended REAL, outcome TEXT NOT NULL DEFAULT '', detail TEXT NOT NULL DEFAULT '',
    first_step INTEGER, last_step INTEGER, events TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (run_id, number)
) WITHOUT ROWID;
CREATE TABLE notes (name TEXT PRIMARY KEY, text TEXT NOT NULL) WITHOUT ROWID;
"""


def connect(path: Path, *, create: bool) -> sqlite3.Connection:
    """Return a connection in autocommit mode. With `create=False`, a missing file reads as an empty queue.

    Raises UserError for a file that is not a queue, has an unsupported version, or cannot be read.
    """
    with explain(path):
        if not path.exists():
            if not create:
                empty = sqlite3.connect(":memory:", isolation_level=None)
                empty.executescript(SCHEMA)
                return empty
            if path.parent.is_dir():
                with explain_os_errors(f"make the queue {path}"):
                    _make(path)
        writable = create or os.access(path.parent, os.W_OK)
        connection = _open(path, writable)
        try:
            if _check(connection, path) == older.VERSION_0_1_0:
                if create and (other := locks.held_by_other(path.parent)):
                    raise UserError(
                        f"The queue {path} is one of version 0.1.0, and {other} works on it. Run this command again "
                        "when that process has ended, or stop it: its runs continue from their checkpoints."
                    )
                connection = _converted(connection, in_place=create and writable)
            connection.execute("PRAGMA trusted_schema=OFF")  # the file may come from another user
            # A power cut may lose the last commits, but not the file. `ablations queue` can add lost jobs again.
            connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection


def _open(path: Path, writable: bool) -> sqlite3.Connection:
    if writable:
        return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
    # On a read-only disk, first try to read the queue with its journal. If this fails, read the file without journal.
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, isolation_level=None)
    try:
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        connection.close()
        connection = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True, isolation_level=None)
    return connection


def _make(path: Path) -> None:
    """Create an empty queue under a temporary name and rename it, so that no process sees an incomplete queue."""
    with folder_beside(path.parent, f".{path.name}.") as folder:
        aside = folder / path.name
        with contextlib.closing(sqlite3.connect(aside, isolation_level=None)) as connection:
            connection.execute(f"PRAGMA journal_mode={journal_mode(path.parent)}")
            with immediate(connection):
                for statement in filter(str.strip, SCHEMA.split(";")):
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id={APPLICATION}")
                connection.execute(f"PRAGMA user_version={VERSION}")
        name_new(aside, path)


def _converted(connection: sqlite3.Connection, in_place: bool) -> sqlite3.Connection:
    """Return the connection to a queue of version 0.1.0, converted to the present version.

    in_place: whether to convert the file itself. If False, a copy in memory is converted, which is enough for readers.
    """
    if not in_place:
        copy = sqlite3.connect(":memory:", isolation_level=None)
        connection.backup(copy)
        connection.close()
        connection = copy
    with immediate(connection):
        # read the version again, because another process may have converted the file
        if connection.execute("PRAGMA user_version").fetchone()[0] == older.VERSION_0_1_0:
            older.convert(connection)
            connection.execute(f"PRAGMA user_version={VERSION}")
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> int:
    """Return the version of the queue. Raise UserError if the file is not a queue or has an unsupported version."""
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if tables == 0:
        raise UserError(f"The queue {path} is damaged: it is empty. Move it away. {REBUILD}")
    if application != APPLICATION:
        raise UserError(
            f"{path} is a database, but not a queue of this program. Move it away, or name another folder with "
            "--store or --state-dir."
        )
    if version not in (VERSION, older.VERSION_0_1_0):
        raise UserError(
            f"The queue {path} was written by another version of this program (queue version {version}; this program "
            f"reads {VERSION}). Use that version, or move the file away. {REBUILD}"
        )
    return version


@contextlib.contextmanager
def immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """Run a transaction that takes the write lock at its start, so that the data it reads cannot change meanwhile."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # on a full disk SQLite has already rolled back
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
