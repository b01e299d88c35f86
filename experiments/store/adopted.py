"""A user's word that a finished run stands for one of other settings: in the run's folder, with who, when and why.

The run keeps its name, settings and numbers; nothing is copied. A plan finds it under the new settings too.
"""

import getpass
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from experiments.errors import Damaged, UserError
from experiments.store.layout import Store
from experiments.store.sealed import read_json, write_json

FILE = "adopted.json"
VERSION = 1


@dataclass(frozen=True)
class Adopted:
    """What somebody says: a run trained with `was` stands for one with `now`; without `now`, for the planned one."""

    was: Mapping[str, Any]  # settings by dotted name
    why: str
    now: Mapping[str, Any] | None = None
    who: str = ""
    when: str = ""  # a date

    def speaks_of(self, recorded: Mapping[str, Any]) -> bool:
        """Whether a run of these settings is one of those that are spoken of."""
        return all(recorded.get(name) == value for name, value in self.was.items())

    def applied(self, recorded: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that a run stands for; as recorded, if it is not one of those that are spoken of."""
        if not self.speaks_of(recorded):
            return dict(recorded)
        now = {name: planned[name] for name in self.was if name in planned} if self.now is None else self.now
        gone = {name for name in self.was if name not in now}
        return {**{name: value for name, value in recorded.items() if name not in gone}, **now}


def adoptions(store: Store, run_id: str) -> list[Adopted]:
    """What was said of a run; [] for an unreadable record, so that nothing is taken for something else."""
    try:
        record = read_json(store.run_folder(run_id) / FILE) or {}
    except UserError:
        return []
    if record.get("version") != VERSION:
        return []
    try:
        return [Adopted(**item) for item in record["adopted"]]
    except (KeyError, TypeError):
        return []


def adopt(store: Store, run_id: str, was: Mapping[str, Any], now: Mapping[str, Any], why: str) -> Adopted:
    """Record that a finished run stands for one with the settings `now` in place of `was`. Raises Damaged."""
    path = store.run_folder(run_id) / FILE
    before = read_json(path) or {"version": VERSION, "adopted": []}
    if before.get("version") != VERSION:
        raise Damaged(f"{path} was written by another version of this program. Nothing was changed.")
    said = Adopted(dict(was), why, dict(now), _user(), time.strftime("%Y-%m-%d"))
    write_json(path, {**before, "adopted": [*before["adopted"], asdict(said)]})
    return said


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name, as in some containers
        return "unknown"
