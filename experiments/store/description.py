"""What a run's folder says of it: config.json, written when it was first queued or imported, and the rows that show it.

Rows of one table, and of several, may share a training and differ in its evaluation. rows.json has each of them, in the
order in which they were queued: the run is named for the first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.errors import UserError
from experiments.records import Member
from experiments.store.layout import Store
from experiments.store.sealed import read_json, write_json

CONFIG = "config.json"
ROWS = "rows.json"
_VERSION = 1


@dataclass(frozen=True)
class TableRow:
    """A row of a table that a run belongs to, with the row's own decoding, whatever was decoded besides."""

    member: Member
    evaluations: Mapping[str, str] = field(default_factory=dict)  # set → eval_id
    settings: Mapping[str, Any] = field(default_factory=dict)  # by dotted name, where config.json has others


def description_of(store: Store, run_id: str, *, forgiving: bool = False) -> dict[str, Any]:
    """The record config.json; {} if there is none. Raises UserError for a damaged one; forgiving: {} for that too."""
    try:
        return read_json(store.run_folder(run_id) / CONFIG) or {}
    except UserError:
        if not forgiving:
            raise
        return {}


def config_of(store: Store, run_id: str, *, forgiving: bool = False) -> Mapping[str, Any]:
    """The settings in the record, nested; {} if there are none. See `description_of`."""
    found = description_of(store, run_id, forgiving=forgiving).get("config")
    return found if isinstance(found, dict) else {}


def rows_of(store: Store, run_id: str) -> list[TableRow]:
    """The rows that a run belongs to; [] where that is not recorded, or cannot be read."""
    try:
        record = read_json(store.run_folder(run_id) / ROWS) or {}
    except UserError:
        return []
    if record.get("version") != _VERSION:
        return []
    try:
        rows = [TableRow(tuple(map(str, row.pop("member"))), **row) for row in map(dict, record["rows"])]  # type: ignore[arg-type]
    except (KeyError, TypeError, ValueError, AttributeError):
        return []
    return [row for row in rows if len(row.member) == 5]


def keep_row(store: Store, run_id: str, row: TableRow) -> None:
    """Record that a run belongs to a row. Its decoding of a set takes the place of an earlier one of the same row."""
    rows = {known.member[:4]: known for known in rows_of(store, run_id)}
    known = rows.get(row.member[:4], TableRow(row.member))
    rows[row.member[:4]] = TableRow(row.member, {**known.evaluations, **row.evaluations}, row.settings)
    path = store.run_folder(run_id) / ROWS
    if rows[row.member[:4]] != known or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, rows_as_json(rows.values()))


def rows_as_json(rows: Iterable[TableRow]) -> dict[str, Any]:
    """The content of rows.json."""
    return {"version": _VERSION, "rows": [asdict(row) for row in rows]}
