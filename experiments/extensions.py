"""What installed packages add to this program by entry points, without a fork. Imports nothing of this program.

A package names its object in its pyproject.toml, in one of the groups `ablations.tasks`, `ablations.engines`,
`ablations.sinks` and `ablations.formats`:

    [project.entry-points."ablations.formats"]
    typst = "my_package.typst:render"
"""

import functools
import importlib
from importlib.metadata import entry_points
from typing import Any


@functools.cache
def added(kind: str) -> dict[str, str]:
    """Name → module:OBJECT of what installed packages add. kind: "tasks", "engines", "sinks" or "formats"."""
    return {entry.name: entry.value for entry in entry_points(group=f"ablations.{kind}")}


def load(place: str) -> Any:
    """The object at module:OBJECT; its module is imported only now."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)
