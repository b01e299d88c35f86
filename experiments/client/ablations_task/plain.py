"""Values as JSON types, and the numbers that a trainer returned."""

from __future__ import annotations

import contextlib
import datetime
import enum
from typing import Any, Callable, Mapping

from .errors import UserError

SHOWN = 100  # characters of a name or value in a message


def plain(value: Any, text: Callable[[str], str] = str) -> Any:
    """Values as JSON types: scalars of numpy and torch, tuples, paths, members of an enumeration. text: of texts."""
    if isinstance(value, Mapping):
        return {text(str(key)): plain(item, text) for key, item in value.items()}
    if isinstance(value, enum.Enum):
        return plain(value.value, text)
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, text) for item in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    return plain(value.item(), text) if hasattr(value, "item") else text(str(value))


def text(value: str) -> str:
    """A text that every file can hold: a lone surrogate (half a character, from a file's name) by its code point."""
    return value.encode(errors="backslashreplace").decode()


def by_set(returned: Any) -> dict[str, dict[str, float]]:
    """A trainer's result as {set: {metric: number}}; numbers without a set have the set ""."""
    if not isinstance(returned, Mapping):
        raise UserError(
            f"The trainer returned {_kind(returned)}: expected a mapping of metrics to numbers, such as "
            '{"accuracy": 93.2}, or one of those per set: {"dev": {…}, "test": {…}}.'
        )
    found: dict[str, dict[str, float]] = {}
    for name, value in returned.items():
        if isinstance(value, Mapping):
            numbers = {text(str(k)): _returned(f"{name}.{k}", v) for k, v in value.items()}
            found.setdefault(text(str(name)), {}).update(numbers)
        else:
            found.setdefault("", {})[text(str(name))] = _returned(str(name), value)
    return found


def _returned(name: str, value: Any) -> float:
    with contextlib.suppress(Exception):  # whatever a value's own method raises
        if not isinstance(value, (str, bytes, bool)):
            return float(value)
    raise UserError(f"The trainer returned {name[:SHOWN]} = {shown(value)}, {_kind(value)}: expected a number.")


def shown(value: Any) -> str:
    """A value in a message."""
    try:
        words = repr(value)
    except Exception:  # an integer of more than 4,300 digits
        return "…"
    return f"{words[:SHOWN]} …" if len(words) > SHOWN else words


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
