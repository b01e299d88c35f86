"""Designs: entries of [[variation]] that stand for many rows, expanded before the study is checked.

    vary = {lr = [0.1, 0.01], dropout = [0.0, 0.5]}     one factor at a time: 4 rows
    grid = {lr = [0.1, 0.01], dropout = [0.0, 0.5]}     every combination: 4 rows
    remove = {attention = {use_attention = false}}      the full model without one component: 1 row each

A factor is a setting with its values, or any name with tables of settings that change together. Rows get the key
key-factor-value: `A-lr0.1`. The entry's other fields (group, set, seeds, note …) apply to each of its rows.
"""

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ablations.study.messages import show
from experiments.config import flatten
from experiments.errors import UserError

MANY_ROWS = 10_000  # above this, --yes is required
DESIGNS = ("vary", "grid", "remove")
_OF_ONE_ROW = ("label", "paper")


@dataclass(frozen=True)
class Choice:
    """One value of a factor: its name in row keys, and the settings it makes."""

    name: str
    settings: Mapping[str, Any]


def expand(table: dict[str, Any], origin: str, many: bool) -> dict[str, Any]:
    """The study's table with every design expanded. Raises UserError, also for over MANY_ROWS rows unless `many`."""
    entries = table.get("variation")
    if not isinstance(entries, list) or not any(_design(entry) for entry in entries):
        return table
    counts = [_count(entry, origin) for entry in entries]
    if sum(counts) > MANY_ROWS and not many:
        largest = max(range(len(entries)), key=counts.__getitem__)
        raise UserError(
            f"{origin}: the study has {sum(counts):,} rows, {counts[largest]:,} of them from "
            f'"{_key(entries[largest])}". '
            f"More than {MANY_ROWS:,} rows are usually a mistake: add --yes to confirm, or give fewer values."
        )
    return {**table, "variation": [row for entry in entries for row in _rows(entry, origin)]}


def _design(entry: Any) -> str:
    return next((name for name in DESIGNS if isinstance(entry, Mapping) and name in entry), "")


def _key(entry: Mapping[str, Any]) -> str:
    return str(entry.get("key", ""))


def _count(entry: Any, origin: str) -> int:
    """Number of rows of an entry, computed without expanding it."""
    kind = _design(entry)
    if not kind:
        return 1
    _check(entry, kind, origin)
    sizes = [len(choices) for choices in _factors(entry, kind, origin).values()]
    return math.prod(sizes) if kind == "grid" else sum(sizes)


def _check(entry: Mapping[str, Any], kind: str, origin: str) -> None:
    where = f'{origin}, row "{_key(entry)}"'
    several = [name for name in DESIGNS if name in entry]
    if len(several) > 1:
        raise UserError(f"{where}: it has {' and '.join(several)}; an entry holds one design. Write two [[variation]].")
    for name in _OF_ONE_ROW:
        if name in entry:
            raise UserError(
                f"{where}: {name} belongs to a single row, but `{kind}` stands for many. Write those rows by hand."
            )


def _rows(entry: Any, origin: str) -> Iterator[Any]:
    kind = _design(entry)
    if not kind:
        yield entry
        return
    factors = _factors(entry, kind, origin)
    combined: Iterable[tuple[Choice, ...]]
    if kind == "grid":
        combined = itertools.product(*factors.values())
    else:
        combined = ((choice,) for choices in factors.values() for choice in choices)
    rest = {name: value for name, value in entry.items() if name not in DESIGNS}
    common = dict(flatten(entry.get("set") or {}))
    for choices in combined:
        settings = {name: value for choice in choices for name, value in choice.settings.items()}
        key = "-".join([_key(entry), *(choice.name for choice in choices)])
        label = {"label": f"without {choices[0].name}"} if kind == "remove" else {}
        yield {"group": _key(entry), **rest, **label, "key": key, "set": common | settings, "design": _key(entry)}


def _factors(entry: Mapping[str, Any], kind: str, origin: str) -> dict[str, Sequence[Choice]]:
    where, given = f'{origin}, row "{_key(entry)}", {kind}', entry[kind]
    if kind == "remove":
        found: dict[str, Sequence[Choice]] = {"": _components(given, where)}
    elif isinstance(given, Mapping):
        found = {name: _choices(name, values, where) for name, values in flatten(given)}
    else:
        raise UserError(f"{where}: expected a table of factors, such as {{lr = [0.1, 0.01]}}.")
    if not found or not all(found.values()):
        raise UserError(f"{where}: it has no values, so it gives no rows.")
    return found


def _choices(factor: str, values: Any, where: str) -> list[Choice]:
    if not isinstance(values, list):
        raise UserError(f"{where}: {factor} = {show(values)}: expected a list of values, such as [0.1, 0.01].")
    name = _word(factor.rpartition(".")[2])
    choices = []
    for value in values:
        settings = dict(flatten(value)) if isinstance(value, Mapping) else {factor: value}
        if not settings:
            raise UserError(f"{where}: {factor}: an empty table changes nothing.")
        choices.append(Choice(f"{name}{_word(next(iter(settings.values())))}", settings))
    return choices


def _components(given: Any, where: str) -> list[Choice]:
    """Components to remove: a list of switches to turn off, or a table component → settings without it."""
    if isinstance(given, list) and all(isinstance(name, str) for name in given):
        return [Choice(_word(name.rpartition(".")[2]), {name: False}) for name in given]
    if isinstance(given, Mapping):
        return [
            Choice(_word(name), dict(flatten(value)) if isinstance(value, Mapping) else {name: value})
            for name, value in given.items()
        ]
    raise UserError(
        f"{where}: expected a list of settings to turn off, or a table of components: "
        "{attention = {use_attention = false}}."
    )


def _word(value: Any) -> str:
    """A value as part of a row key: 0.1, yes, a.b; other characters become "_"."""
    if isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, list):
        text = ".".join(_word(item) for item in value)
    else:
        text = str(value)
    return re.sub(r"[^A-Za-z0-9._-]+", "_", text) or "empty"
