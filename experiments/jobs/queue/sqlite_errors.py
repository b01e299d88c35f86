"""Explain SQLite's errors in the queue and in MLflow's database, and say what to do."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from experiments.errors import DiskFull, UserError

REBUILD = "A queue contains no results: `ablations queue STUDY` makes it again."
# Parts of SQLite's messages if a file is damaged or belongs to another version.
_DAMAGE = ("malformed", "no such table", "no such column", "has no column", "not decode", "unsupported file format")


@contextlib.contextmanager
def explain(path: Path, what: str = "the queue", again: str = f"Move it away. {REBUILD}") -> Iterator[None]:
    """Turn SQLite errors that a user can fix into UserError or DiskFull.

    SQLite errors that MLflow raises are included. Other errors pass unchanged.

    what: name of the database for messages.
    again: advice on how to get a new database.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        message = _message(error, path)
        advice = _advice(message, path, what, again) if message else None
        if advice is None:
            raise
        raise (DiskFull if "disk is full" in message else UserError)(advice) from error


def _message(error: BaseException, path: Path) -> str:
    """Return SQLite's message; "" if SQLite did not cause the error."""
    if isinstance(error, UnicodeDecodeError):  # SQLite's message quotes a damaged schema, which is not valid UTF-8
        return "malformed"
    if "database schema (found version" in str(error):  # MLflow found tables of another version
        return "no such table"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, sqlite3.Error):
        cause = cause.__cause__
    return "" if cause is None else _meant(str(cause), path)


def _meant(message: str, path: Path) -> str:
    """Return SQLite's message. If SQLite could not create a file beside the database, return the cause instead."""
    if "unable to open" in message and path.parent.is_dir() and not path.is_dir():
        if path.exists() and not os.access(path.parent, os.W_OK):
            return "readonly database"
        disk = os.statvfs(path.parent)
        if disk.f_files and not disk.f_favail:
            return "database or disk is full"  # there are no inodes left
    return message


def _advice(message: str, path: Path, what: str, again: str) -> str | None:
    its = f"{what[0].upper()}{what[1:]} {path}"
    elsewhere = "or name another place with --state-dir."
    known = {
        "disk is full": f"There is no space left, or no inode (`df -i`), for {what} {path}. Free some, {elsewhere} "
        "Finished results are not lost.",
        "readonly database": f"{its} cannot be written: it or its disk is read-only. Check the owner and mode, "
        f"{elsewhere}",
        "unable to open": f"{its} cannot be opened. Check that its folder exists and that you may write to it, "
        f"{elsewhere}",
        "disk I/O error": f"The disk failed while reading or writing {what} {path}. Check the disk and its space, "
        f"{elsewhere} {again}",
        "not a database": f"{path} is not {what}, because it is not an SQLite file. {again}",
        **dict.fromkeys(_DAMAGE, f"{its} is damaged, or of another version. {again}"),
        "is locked": f"{its} stayed locked by another process. Try again; if it is on a network disk, name a local "
        "folder with --state-dir.",
    }
    return next((text for part, text in known.items() if part in message), None)
