"""What records say, of the type that a report can print; older stores and other tasks record less."""

import math
from collections.abc import Mapping
from typing import Any

from reports.results.sound import Record


def look_up(record: Record | None, *path: str) -> Any:
    """`record[a][b]…`, or None where a part is not there: older stores and other tasks record less."""
    value: Any = record
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


# The same where one type alone can be printed: a bundle of somebody else's may hold anything.
def text_in(record: Record | None, *path: str) -> str:
    """ "" for what is no text."""
    value = look_up(record, *path)
    return value if isinstance(value, str) else ""


def whole_in(record: Record | None, *path: str) -> int | None:
    """A count from 0."""
    value = look_up(record, *path)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def real_in(record: Record | None, *path: str) -> float | None:
    """A finite number from 0."""
    value = look_up(record, *path)
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf
    return float(value) if usable else None


def object_in(record: Record | None, *path: str) -> Record:
    """An object; empty if there is none."""
    value = look_up(record, *path)
    return value if isinstance(value, Mapping) else {}


def objects_in(record: Record | None, *path: str) -> list[Record]:
    """The objects of a list."""
    value = look_up(record, *path)
    return [item for item in value if isinstance(item, Mapping)] if isinstance(value, list) else []


# What a finished run's record says of itself, and where.
RUN_FACTS: dict[str, tuple[str, ...]] = {
    "steps": ("step",),
    "wall_s": ("wall_s",),
    "train_s": ("train_s",),
    "device": ("device",),
    "device_kind": ("device_kind",),
    "devices": ("devices",),
    "device_share": ("device_share",),
    "threads": ("threads",),
    "precision": ("precision",),
    "torch": ("versions", "torch"),
    "repository": ("revision", "repository"),
    "commit": ("revision", "commit"),
    "dirty": ("revision", "dirty"),
    "code_digest": ("code_digest",),
    "tool": ("tool", "version"),
    "tool_commit": ("tool", "commit"),
    "host": ("host",),
}


def fact(record: Record | None, name: str) -> Any:
    """One of RUN_FACTS of a run's record, or None."""
    return look_up(record, *RUN_FACTS[name])
