"""The program of a trainer's process; multiprocessing runs it again in the processes that it spawns.

Names of this program's packages belong to the user there: `model`, `experiments`, `reports`, `ablations`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

OURS = ("ablations", "model", "experiments", "reports")


class TheUsers:
    """Finds modules with the names of the program's packages where the user has them, never in the program."""

    def __init__(self, program: str) -> None:
        self._program = os.path.realpath(program)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in OURS:
            return None
        spec = PathFinder.find_spec(name, [one for one in sys.path if os.path.realpath(one) != self._program])
        if spec is None:
            raise ModuleNotFoundError(
                f"No module named {name!r}. A trainer has a process of its own, into which no package of this program "
                "is imported: it imports `from ablations_task import column, task` (docs/own-task.md)",
                name=name,
            )
        return spec


sys.path[:1] = [__file__.rpartition("ablations_task")[0]]  # in place of this file's folder
if __name__ in ("__main__", "__mp_main__"):
    sys.meta_path.insert(0, TheUsers(os.environ["ABLATIONS_PROGRAM"]))
if __name__ == "__main__":
    from ablations_task.process import main  # type: ignore[import-not-found]

    main()
