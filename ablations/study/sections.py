"""Tables of a study file that an extra reads: the extension point `sections` (docs/extending.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from experiments.messages import plain
from model.extensions import added, load


def _accept(_value: Any, _study: Any) -> None:
    """Accept every value."""


@dataclass(frozen=True)
class Section:
    """A top-level table of a study file.

    kind: the type that pydantic validates the table against, such as a model or a tuple of models. check: a function of
    the validated value and the whole study, which raises ValueError for mistakes.
    """

    kind: Any
    check: Callable[[Any, Any], None] = _accept


def section_named(name: str) -> Section:
    """Return the section with this name. Raises ValueError, with the installed sections, for an unknown name."""
    known = added("sections")
    if name not in known:
        raise ValueError(f"there is no section {name}. The installed sections are: {', '.join(known) or 'none'}")
    found: Section = load(known[name])
    return found


def read_sections(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Validate each table against the type of its section. Raises ValueError for an unknown or invalid table."""
    found = {}
    for name, table in tables.items():
        try:
            found[name] = TypeAdapter(section_named(name).kind).validate_python(table)
        except ValidationError as error:
            wrong = error.errors()[0]
            place = ".".join(map(str, (name, *wrong["loc"])))
            raise ValueError(f"{place}: {plain(wrong)}") from None
    return found


def check_sections(tables: Mapping[str, Any], study: Any) -> None:
    """Check the validated tables against the whole study. Raises ValueError if a check fails."""
    for name, table in tables.items():
        try:
            section_named(name).check(table, study)
        except ValueError as error:
            raise ValueError(f"[{name}]: {error}") from None
