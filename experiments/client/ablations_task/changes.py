"""Changes of a trainer's network: `context.ablate` calls the modules that extras add to this package.

The module `ablations_task.NAME` of the change NAME has two functions. `change(context, model, batches, value)` changes
a network in place; value: of the setting NAME in the run's row, None where it is not set.
`answer(trainer, settings, request, context)` answers a request that the extra sends to the trainer's process; context:
a `RunContext` whose folder is removed afterwards.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Iterable, Mapping

CHANGES = "ABLATIONS_CHANGES"  # variable of a trainer's process: the folders of these modules
MISSING = (
    "context.ablate changes nothing: the extra module_rows, which changes networks as `modules` of a row says, is not "
    "installed. Install a version of transformer-ablations that has the folder ablations/extras/module_rows."
)


def folders() -> list[str]:
    """The folders of the modules that extras add."""
    return [one for one in os.environ.get(CHANGES, "").split(os.pathsep) if one]


def module_of(name: str) -> Any:
    """The module of a change."""
    return importlib.import_module(f"{__package__}.{name}")


def change(context: Any, model: Any, batches: Iterable[Any], values: Mapping[str, Any]) -> None:
    """Change a network in place as the row says. values: of all changes that are installed, by name."""
    for name, value in values.items():
        module_of(name).change(context, model, batches, value)
