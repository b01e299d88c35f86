"""Convert names of another program to names that a study allows: keys of rows, sets and settings."""

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping

from experiments.config.task_config import GIVEN_ELSEWHERE
from experiments.labels import LONGEST_KEY, short_key

_PART = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_RESERVED = {*GIVEN_ELSEWHERE, "command"}


def printable(text: str) -> str:
    """Return the text on one line, without control characters."""
    return "".join(sign for sign in " ".join(text.split()) if sign.isprintable())


def as_key(text: str, empty: str = "row") -> str:
    """Return a key for a row, a group or a set: at most 64 letters, digits, dots, dashes and underscores."""
    key = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._") or empty
    return short_key(key)


def row_keys(names: Iterable[str]) -> dict[str, str]:
    """Return a unique key for each name. A valid key stays unchanged.

    Other names are converted, and get a number if the key is taken.
    """
    every = list(dict.fromkeys(names))
    keys = {name: name for name in every if as_key(name) == name}
    taken = set(keys)
    for name in every:
        if name not in keys:
            keys[name] = _unused(as_key(name), taken, "-")
            taken.add(keys[name])
    return keys


def setting_names(names: Iterable[str]) -> dict[str, str]:
    """Return a unique name of a setting for each name: letters, digits, underscores, dashes and dots.

    A name that TOML and a study allow stays unchanged. Dots become underscores if another setting has the name of the
    group.
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
    """Return the name, or the name with the first number from 2 on that makes it unique."""
    number, found = 2, name
    while found in taken:
        found = f"{name[: LONGEST_KEY - 5] if mark == '-' else name}{mark}{number}"
        number += 1
    return found


def _written_for(name: str, head: str) -> bool:
    """Return whether `setting_names` may have made the name of a study's setting from the text `head`."""
    clean = _safe(head)
    return bool(re.fullmatch(rf"({re.escape(clean)}|{re.escape(clean.replace('.', '_'))})(_\d+)?", name))


def names_in(columns: Mapping[str, str], declared: Collection[str], theirs: Iterable[str]) -> dict[str, str]:
    """Return the setting of a study for each name in the source.

    The setting is the one with this heading in [columns], or else the one of the same name. If there is none, the
    function returns the name that `setting_names` makes.
    """
    heads = {head: name for name, head in columns.items() if _written_for(name, head)}
    return {
        name: heads.get(name, name if name in declared and name not in _RESERVED else written)
        for name, written in setting_names(theirs).items()
    }
