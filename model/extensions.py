"""Find what extras and installed packages add to this program, by name. Imports nothing of what it finds.

An extra is a folder of `ablations/extras` with an `extra.toml`. A package names its objects as entry points in its
pyproject.toml. Both map names to "module:OBJECT", one table for each extension point (docs/extending.md):

    [formats]                                      # extra.toml
    typst = "ablations.extras.typst.page:render"

    [project.entry-points."ablations.formats"]     # pyproject.toml of a package
    typst = "my_package.typst:render"
"""

import functools
import importlib
import tomllib
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

KINDS = (
    *("tasks", "engines", "sinks", "formats", "layers", "commands", "sections", "notes"),
    *("archives", "verifiers", "readers"),
)
DECLARATION = "extra.toml"
_HOME = Path(__file__).parents[1]  # the checkout, or `ablations/rooms` of an installed package (setup.py)
EXTRAS = (_HOME.parent if _HOME.name == "rooms" else _HOME / "ablations") / "extras"


def extras() -> list[Path]:
    """The folders of the extras that are there."""
    return sorted(file.parent for file in EXTRAS.glob(f"*/{DECLARATION}"))


@functools.cache
def _found() -> dict[str, dict[str, str]]:
    """Kind → name → module:OBJECT. A name of an extra comes before the same name of a package."""
    found: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
    for folder in extras():
        declared = tomllib.loads((folder / DECLARATION).read_text(encoding="utf-8"))
        for kind, names in declared.items():
            found[kind].update(names)
    for package in distributions():  # one pass over all kinds: it reads a file of each installed package
        for entry in package.entry_points:
            program, _, kind = entry.group.partition(".")
            if program == "ablations" and kind in found:
                found[kind].setdefault(entry.name, entry.value)
    return found


def added(kind: str) -> dict[str, str]:
    """Name → module:OBJECT of what extras and installed packages add. kind: one of `KINDS`."""
    return dict(_found()[kind])


def forget() -> None:
    """Look for extras and packages again at the next call of `added`."""
    _found.cache_clear()


def load(place: str) -> Any:
    """The object at module:OBJECT; its module is imported only now."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
