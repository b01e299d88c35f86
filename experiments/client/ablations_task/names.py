"""Names of this program's packages belong to the user: `model`, `experiments`, `reports`, `ablations`."""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, NoReturn

OURS = ("ablations", "model", "experiments", "reports")
# What studies imported before this module existed.
ALIASES = ("experiments.tasks", "experiments.tasks.own", "experiments.tasks.own.function", "experiments.tasks.columns",
           "experiments.errors")  # fmt: skip


def belong_to_the_user() -> None:
    """Let no import in this process find a package of this program."""
    sys.meta_path.insert(0, TheUsers(os.environ["ABLATIONS_PROGRAM"]))


class TheUsers:
    """Finds modules with the names of the program's packages where the user has them, never in the program."""

    def __init__(self, ours: str) -> None:
        self._ours = os.path.realpath(ours)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in OURS:
            return None
        if path is None:
            found = PathFinder.find_spec(name, [one for one in sys.path if os.path.realpath(one) != self._ours])
            if found is not None and found.origin is not None:
                return found
            if name != "experiments":
                if found is None:
                    self._refuse(name)
                return found
            spec = ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
            spec.submodule_search_locations = list(found.submodule_search_locations or []) if found else []
            return spec
        if getattr(sys.modules.get("experiments"), "__loader__", None) is not self:
            return None
        if name in ALIASES:
            return ModuleSpec(name, self, is_package=True)
        found = PathFinder.find_spec(name, path)
        if found is None:
            self._refuse(name)
        return found

    def create_module(self, spec: ModuleSpec) -> None:
        """The usual kind of module."""

    def exec_module(self, module: Any) -> None:
        if module.__name__ in ALIASES[2:]:
            client = vars(sys.modules[__package__])
            vars(module).update({name: client[name] for name in client["__all__"]})

    def _refuse(self, name: str) -> NoReturn:
        raise ModuleNotFoundError(
            f"No module named {name!r}. A trainer has a process of its own, into which no package of this program is "
            "imported: it imports `from ablations_task import column, task` (docs/own-task.md)",
            name=name,
        )
