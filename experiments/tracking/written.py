"""Which runs MLflow's database holds, in a file beside it, so that `status` and `run` need not import MLflow.

A line is appended once a run is written whole. After a kill in between, the run is written again, which adds nothing
twice. The file is removed with the database that it describes.
"""

import json
from pathlib import Path

from experiments.errors import explain_os_errors
from experiments.store.durable import read_regular


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
    with explain_os_errors(f"read {path}"):
        lines = read_regular(path).splitlines()
    found: dict[str, str] = {}
    for line in lines:
        try:
            run_id, record = json.loads(line)
        except (ValueError, TypeError):
            continue
        if isinstance(run_id, str) and isinstance(record, str):
            found[run_id] = record
    return {run_id: record for run_id, record in found.items() if record}


def note(database: Path, run_id: str, record: str) -> None:
    """Append that MLflow shows these records of a run; "" if it shows the run no longer."""
    with file_of(database).open("a", encoding="utf-8") as file:
        file.write(f"\n{json.dumps([run_id, record])}")  # the break comes first: it ends a line that a kill has cut off
