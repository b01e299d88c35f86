"""Changes of a trainer's network. `context.ablate` calls the modules that extras add to this package.

The change NAME has a module `ablations_task.NAME` with two functions:

`change(context, model, batches, value)` changes a network in place. `value` is the value of the setting NAME in the
run's row, or None if the row does not set it.

`answer(trainer, settings, request, context)` answers a request that the extra sends to the trainer's process. `context`
is a `RunContext` whose folder is removed after the answer.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Iterable, Mapping

CHANGES = "ABLATIONS_CHANGES"  # environment variable with the folders of the modules that extras add
MISSING = (
    "context.ablate changes nothing: the extra module_rows, which changes networks as `modules` of a row says, is not "
    "installed. Install a version of transformer-ablations that has the folder ablations/extras/module_rows."
)


def folders() -> list[str]:
    """Return the folders of the modules that extras add."""
    return [one for one in os.environ.get(CHANGES, "").split(os.pathsep) if one]


def module_of(name: str) -> Any:
    """Import and return the module of a change."""
    return importlib.import_module(f"{__package__}.{name}")


def change(context: Any, model: Any, batches: Iterable[Any], values: Mapping[str, Any]) -> None:
    """Apply all installed changes to a network, in place. values: name of each change → its value in the row."""
    for name, value in values.items():
        module_of(name).change(context, model, batches, value)
