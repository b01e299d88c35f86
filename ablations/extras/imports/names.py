"""Names of a study for the names of another program: keys of rows, sets and settings. The user's text is the label."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

from experiments.config.task_config import GIVEN_ELSEWHERE
from experiments.labels import LONGEST_KEY, short_key

_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_RESERVED = {*GIVEN_ELSEWHERE, "command"}


def printable(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def as_key(text: str, empty: str = "row") -> str:
    """A key for a row, a group or a set: letters, digits, dot, dash and underscore, at most 64."""
    key = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or empty
    return short_key(key)


def row_keys(names: Iterable[str]) -> dict[str, str]:
    """A key of its own for each name, in their order: a name that is a key keeps it, others get a number if need be."""
    every = list(dict.fromkeys(names))
    keys = {name: name for name in every if as_key(name) == name}
    taken = set(keys)
    for name in every:
        if name not in keys:
            keys[name] = _unused(as_key(name), taken, "-")
            taken.add(keys[name])
    return keys


def setting_names(names: Iterable[str]) -> dict[str, str]:
    """A setting of a study for each name: letters, digits, underscores and dashes; dots where no other name is a group.

    A name that TOML and a study can have stays as it is.
    """
    every = list(dict.fromkeys(names))
    found: dict[str, str] = {}
    for name in sorted(every, key=lambda one: (_safe(one) != one, one.count("."))):
        clean = _safe(name)
        if any(_within(clean, other) or _within(other, clean) for other in found.values()):
            clean = clean.replace(".", "_")
        found[name] = _unused(clean, found.values(), "_")
    return {name: found[name] for name in every}


def _safe(name: str) -> str:
    clean = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    parts = [part if _PART.fullmatch(part) else f"_{part}" for part in clean.split(".")]
    if not all(map(str.strip, clean.split("."))):
        parts = [re.sub(r"[^A-Za-z0-9_]", "_", f"_{clean}")]
    clean = ".".join(parts)
    if not re.search(r"[A-Za-z0-9]", clean):
        clean = "setting"
    if len(clean) > 100:
        clean = f"{clean[:90]}_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    return f"{clean}_" if clean.partition(".")[0] in _RESERVED else clean


def _within(name: str, group: str) -> bool:
    return name.startswith(f"{group}.")


def _unused(name: str, taken: Collection[str], mark: str) -> str:
    """The name, else with the first number from 2 on that makes it a new one."""
    number, found = 2, name
    while found in taken:
        found = f"{name[: LONGEST_KEY - 5] if mark == '-' else name}{mark}{number}"
        number += 1
    return found


def _written_for(name: str, head: str) -> bool:
    """Return whether a study's setting may have been written for a setting with this name (`setting_names`)."""
    clean = _safe(head)
    return bool(re.fullmatch(rf"({re.escape(clean)}|{re.escape(clean.replace('.', '_'))})(_\d+)?", name))


def names_in(columns: Mapping[str, str], declared: Collection[str], theirs: Iterable[str]) -> dict[str, str]:
    """Settings of a study by their names: by the study's [columns], else the same name, else as it would be written."""
    heads = {head: name for name, head in columns.items() if _written_for(name, head)}
    return {
        name: heads.get(name, name if name in declared and name not in _RESERVED else written)
        for name, written in setting_names(theirs).items()
    }
