"""Read and write the file that lists the runs in MLflow's database, so that `status` and `run` need not import MLflow.

A line is appended once a run is completely written to the database. If the process is killed before that, the run is
written again, which does not duplicate anything. The file is removed together with its database.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from experiments.errors import UserError
from experiments.store.durable import read_regular, write_bytes


def file_of(database: Path) -> Path:
    """Return the file with the list of runs in a database."""
    return database.with_suffix(".jsonl")


def written(database: Path) -> dict[str, str]:
    """Return the runs in the database: run_id → digest of the records that MLflow shows (see `record.content`).

    Returns {} if there is no database or no list. Invalid lines are skipped. Raises UserError if the file cannot be
    read.
    """
    path = file_of(database)
    if not database.is_file() or not path.exists():
        return {}
    try:
        lines = read_regular(path).splitlines()
    except OSError as error:
        why = error.strerror or "it is not a regular file"
        raise UserError(f"{path} cannot be read ({why}). `ablations ui --rebuild mlflow` creates it again.") from error
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
    """Return whether a database has no list of runs: an earlier version wrote it, or the list was removed."""
    return database.is_file() and not file_of(database).exists()


def begin(database: Path, known: Mapping[str, str]) -> None:
    """Replace the list of a database by the given runs and digests."""
    write_bytes(file_of(database), "".join(f"\n{json.dumps(item)}" for item in known.items()).encode())


def note(database: Path, run_id: str, record: str) -> None:
    """Append the digest of the records that MLflow shows of a run; "" if it no longer shows the run."""
    with file_of(database).open("a", encoding="utf-8") as file:
        file.write(f"\n{json.dumps([run_id, record])}")  # the newline is first, to end a line that a kill cut off
