"""Find the extensions of extras and installed packages by name. Only `load` imports an extension.

An extra is a folder of `ablations/extras` with an `extra.toml`. A package declares its objects as entry points in its
pyproject.toml. Both files have one table for each extension point (docs/extending.md). A table maps names to
"module:OBJECT":

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
from typing import Any, NamedTuple

KINDS = (
    *("tasks", "engines", "sinks", "formats", "layers", "commands", "sections", "notes"),
    *("archives", "verifiers", "readers", "changes"),
)
DECLARATION = "extra.toml"
_HOME = Path(__file__).parents[1]  # the checkout, or `ablations/packages` of an installed package (setup.py)
EXTRAS = (_HOME.parent if _HOME.name == "packages" else _HOME / "ablations") / "extras"


def extras() -> list[Path]:
    """Return the folders of the installed extras."""
    return sorted(file.parent for file in EXTRAS.glob(f"*/{DECLARATION}"))


class ExtensionError(ValueError):
    """Raised if an extension of an installed package cannot be used. The message names the package."""


class _Found(NamedTuple):
    places: dict[str, dict[str, str]]  # kind → name → module:OBJECT
    packages: dict[str, str]  # top-level module → the installed package that adds its objects
    twice: dict[str, str]  # module:OBJECT → another package that adds an object with the same name


@functools.cache
def _found() -> _Found:
    """Collect the declared extensions. If an extra and a package use the same name, the extra takes precedence."""
    found = _Found({kind: {} for kind in KINDS}, {}, {})
    for folder in extras():
        declared = tomllib.loads((folder / DECLARATION).read_text(encoding="utf-8"))
        for kind, names in declared.items():
            found.places[kind].update(names)
    for package in distributions():  # one pass for all kinds, because it reads a file of every installed package
        for entry in package.entry_points:
            program, _, kind = entry.group.partition(".")
            if program != "ablations" or kind not in found.places:
                continue
            place = found.places[kind].setdefault(entry.name, entry.value)
            other = found.packages.get(_outermost(place))  # None if an extra adds the name
            if place == entry.value:
                found.packages.setdefault(_outermost(place), package.name)
            elif other not in (None, package.name):
                found.twice[place] = package.name
    return found


def _outermost(place: str) -> str:
    """Return the top-level module of module:OBJECT."""
    return place.partition(":")[0].partition(".")[0]


def added(kind: str, *, packages: bool = True) -> dict[str, str]:
    """Return the extensions of one kind as {name: module:OBJECT}. `kind` is one of `KINDS`.

    With packages=False, return only the extensions of extras.
    """
    found = _found()
    return {
        name: place for name, place in found.places[kind].items() if packages or _outermost(place) not in found.packages
    }


def forget() -> None:
    """Clear the cache. The next call of `added` searches for extras and packages again."""
    _found.cache_clear()


def load(place: str) -> Any:
    """Import the module of module:OBJECT and return the object.

    Raises ExtensionError if an object of a package cannot be imported, or if another package adds the same name.
    """
    module, _, attribute = place.partition(":")
    package = _found().packages.get(_outermost(place))
    if package is None:
        return getattr(importlib.import_module(module), attribute)
    if other := _found().twice.get(place):
        raise ExtensionError(
            f"The installed packages {package} and {other} add different objects with the same name to this program; "
            f"the first is {place}. Uninstall one of them, or rename its entry point."
        )
    try:
        return getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ExtensionError(
            f"The installed package {package} does not work: {place} cannot be imported ({type(error).__name__}: "
            f"{error}). Correct the package, or uninstall it: pip uninstall {package}"
        ) from error
