"""Watches what a run imports: its code must be its own tree's, never the working copy's (docs/code-rows.md).

Python imports this at its start, in the processes that the run starts too. A source, bytecode or extension file of the
repository outside of the tree and of the declared links is named in a report, and not imported. The user's own
sitecustomize follows. Runs on Python 3.8 too.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))
_CODE = (".py", ".pyc", ".so", ".pyd")


def _watch(repository: str, allowed: tuple[str, ...], report: str) -> None:
    def inside(path: str, folders: tuple[str, ...]) -> bool:
        return any(path == folder or path.startswith(folder + os.sep) for folder in folders)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" and event != "import":
            return
        path = arguments[event == "import"]
        if not isinstance(path, str) or not path.endswith(_CODE):
            return
        real = os.path.realpath(path)
        if inside(real, (repository,)) and not inside(real, allowed):
            handle = os.open(report, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(handle, os.fsencode(real + "\n"))
            os.close(handle)
            raise ImportError(real + " lies in the working copy, not in the tree of this run")

    sys.addaudithook(hook)


_given = os.environ.get("ABLATIONS_WATCH", "").split("\n")
if len(_given) > 2:  # the repository, the report, what is allowed
    _ours = (os.path.dirname(_HERE), sys.prefix, sys.base_prefix)
    _watch(os.path.realpath(_given[0]), tuple(map(os.path.realpath, (*_given[2:], *_ours))), _given[1])
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
del sys.modules["sitecustomize"]
try:
    importlib.import_module("sitecustomize")
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
