"""What a run's folder says of it: config.json, written when it was first queued or imported, and the rows that show it.

Rows of one table, and of several, may share a training and differ in its evaluation. The run is named for the first,
which is in config.json. Once there are several, or the first has changed, rows.json has all of them, in the order in
which they were queued.
"""

import contextlib
from collections.abc import Mapping
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
    """The rows that a run belongs to, the first one first; [] where that is not recorded, or cannot be read."""
    try:
        recorded = (read_json(store.run_folder(run_id) / ROWS) or {}).get("rows")
    except UserError:
        recorded = None
    rows = []
    for one in recorded or [description_of(store, run_id, forgiving=True).get("row")]:
        with contextlib.suppress(KeyError, TypeError, ValueError):
            study, profile, corpus, row, group = map(str, one["member"])
            rows.append(TableRow((study, profile, corpus, row, group), dict(one["evaluations"]), dict(one["settings"])))
    return rows


def keep_row(store: Store, run_id: str, row: TableRow) -> None:
    """Record that a run belongs to a row. Its decoding of a set takes the place of an earlier one of the same row."""
    rows = {known.member[:4]: known for known in rows_of(store, run_id)}  # a row may come to another group
    known = rows.get(row.member[:4])
    new = TableRow(row.member, {**(known.evaluations if known else {}), **row.evaluations}, row.settings)
    if new != known:
        rows[row.member[:4]] = new
        path = store.run_folder(run_id) / ROWS
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"rows": [asdict(one) for one in rows.values()]})
