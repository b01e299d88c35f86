"""Names of this program's packages belong to the user: `model`, `experiments`, `reports`, `ablations`."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

OURS = ("ablations", "model", "experiments", "reports")


def belong_to_the_user() -> None:
    """Let no import in this process find a package of this program."""
    sys.meta_path.insert(0, TheUsers(os.environ["ABLATIONS_PROGRAM"]))


class TheUsers:
    """Finds modules with the names of the program's packages where the user has them, never in the program."""

    def __init__(self, ours: str) -> None:
        self._ours = os.path.realpath(ours)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in OURS:
            return None
        found = PathFinder.find_spec(name, [one for one in sys.path if os.path.realpath(one) != self._ours])
        if found is None:
            raise ModuleNotFoundError(
                f"No module named {name!r}. A trainer has a process of its own, into which no package of this program "
                "is imported: it imports `from ablations_task import column, task` (docs/own-task.md)",
                name=name,
            )
        return found
