"""List of the runs in MLflow's database, in a file beside it, so that `status` and `run` need not import MLflow.

A line is appended once a run is written whole. After a kill in between, the run is written again, which adds nothing
twice. The file is removed with the database that it describes.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from experiments.errors import UserError
from experiments.store.durable import read_regular, write_bytes


def file_of(database: Path) -> Path:
    """The file that describes a database."""
    return database.with_suffix(".jsonl")


def written(database: Path) -> dict[str, str]:
    """run_id → digest of the records that MLflow shows of it (see `record.content`); {} if there is no database.

    Unreadable lines are skipped. Raises UserError if the file cannot be read.
    """
    path = file_of(database)
    if not database.is_file() or not path.exists():
        return {}
    try:
        lines = read_regular(path).splitlines()
    except OSError as error:
        why = error.strerror or "it is no regular file"
        raise UserError(f"{path} cannot be read ({why}). `ablations ui --rebuild mlflow` makes it anew.") from error
    found: dict[str, str] = {}
    for line in lines:
        try:
            run_id, record = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(run_id, str) and isinstance(record, str):
            found[run_id] = record
    return {run_id: record for run_id, record in found.items() if record}


def is_unknown(database: Path) -> bool:
    """Return whether a database has no file beside it: an earlier version wrote it, or the file was removed."""
    return database.is_file() and not file_of(database).exists()


def begin(database: Path, known: Mapping[str, str]) -> None:
    """Write the file anew, with these records of runs."""
    write_bytes(file_of(database), "".join(f"\n{json.dumps(item)}" for item in known.items()).encode())


def note(database: Path, run_id: str, record: str) -> None:
    """Append that MLflow shows these records of a run; "" if it shows the run no longer."""
    with file_of(database).open("a", encoding="utf-8") as file:
        file.write(f"\n{json.dumps([run_id, record])}")  # the break comes first: it ends a line that a kill has cut off
