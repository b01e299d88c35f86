"""SQLite's errors as paragraphs that say what to do."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from experiments.errors import DiskFull, UserError

BUSY_TIMEOUT_S = 30.0
REBUILD = "A queue holds no results: it can be deleted and is rebuilt by `ablations queue`."


@contextlib.contextmanager
def explain(path: Path) -> Iterator[None]:
    """Turn SQLite errors that a user can fix into UserError or DiskFull; others pass unchanged."""
    try:
        yield
    except UnicodeDecodeError as error:  # SQLite quotes the damaged part of a schema
        raise UserError(_advice("malformed", path)) from error
    except sqlite3.Error as error:
        message = _meant(str(error), path)
        advice = _advice(message, path)
        if advice is None:
            raise
        raise (DiskFull if "disk is full" in message else UserError)(advice) from error


def _meant(message: str, path: Path) -> str:
    """SQLite's message, or the cause behind a message that a file beside the queue could not be created."""
    if "unable to open" in message and path.parent.is_dir() and not path.is_dir():
        if path.exists() and not os.access(path.parent, os.W_OK):
            return "readonly database"
        disk = os.statvfs(path.parent)
        if disk.f_files and not disk.f_favail:
            return "database or disk is full"  # of inodes
    return message


# SQLite's messages for damage that it does not recognise as such
_DAMAGE = ("no such table", "no such column", "not decode", "unsupported file format")


def _advice(message: str, path: Path) -> str | None:
    known = {
        "disk is full": f"There is no space left, or no inode (`df -i`), for the queue {path}. Free some, or name "
        "another place with --state-dir. Nothing that was finished is lost.",
        "readonly database": f"The queue {path} cannot be written: it or its disk is read-only. Check the owner and "
        "mode, or name another place with --state-dir.",
        "unable to open": f"The queue {path} cannot be opened. Check that its folder exists and that you may write to "
        "it, or name another place with --state-dir.",
        "disk I/O error": f"The disk failed while reading or writing the queue {path}. Check the disk and its space, "
        f"or name another place with --state-dir. {REBUILD}",
        "not a database": f"{path} is not a queue, because it is not an SQLite file. Move it away. {REBUILD}",
        **dict.fromkeys(_DAMAGE, f"The queue {path} is damaged. Move it away. {REBUILD}"),
        "malformed": f"The queue {path} is damaged. Move it away. {REBUILD}",
        "is locked": f"The queue {path} stayed locked for {BUSY_TIMEOUT_S:.0f} s by another process. Try again; if it "
        "is on a network disk, name a local folder with --state-dir.",
    }
    return next((text for part, text in known.items() if part in message), None)
