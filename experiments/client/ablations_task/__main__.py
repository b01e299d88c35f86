"""The program of a trainer's process. multiprocessing runs it again in each process that it spawns.

In these processes, `import model` finds the user's module `model` and never this program's package. The same holds for
`experiments`, `reports` and `ablations`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

OURS = ("ablations", "model", "experiments", "reports")


class UserModuleFinder:
    """An import finder for the names of this program's packages, which finds only the user's modules.

    program: the folder with this program's packages, which the finder does not search.
    """

    def __init__(self, program: str) -> None:
        self._program = os.path.realpath(program)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in OURS:
            return None
        spec = PathFinder.find_spec(name, [one for one in sys.path if os.path.realpath(one) != self._program])
        if spec is None:
            raise ModuleNotFoundError(
                f"No module named {name!r}. A trainer runs in a separate process, into which no package of this "
                "program is imported: it imports `from ablations_task import column, task` (docs/own-task.md)",
                name=name,
            )
        return spec


sys.path[:1] = [__file__.rpartition("ablations_task")[0]]  # replace the folder of this file by its parent
if __name__ in ("__main__", "__mp_main__"):
    sys.meta_path.insert(0, UserModuleFinder(os.environ["ABLATIONS_PROGRAM"]))
if __name__ == "__main__":
    from ablations_task.process import main  # type: ignore[import-not-found]

    main()
