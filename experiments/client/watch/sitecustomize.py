"""Watches what a run imports: its code must be its own tree's, never the working copy's (docs/code-rows.md).

Python imports this at its start, in the processes that the run starts too. A source, bytecode or extension file of the
repository outside of the tree and of the declared links is named in a report, and not imported. The user's own
sitecustomize follows. Runs on Python 3.8 too.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


_report, *_places = os.environ.get("ABLATIONS_WATCH", "").split("\n")  # the repository, then what is allowed
_places = [os.path.realpath(place) + os.sep for place in _places]
_allowed = (*_places[1:], os.path.dirname(_HERE), sys.prefix, sys.base_prefix)


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    path = arguments[event == "import"] if event in ("open", "import") else None
    if isinstance(path, str) and path.endswith((".py", ".pyc", ".so")):
        real = re.sub(r"__pycache__/([^/.]*)[^/]*$", r"\1.py", os.path.realpath(path))
        if real.startswith(_places[0]) and not f"{real}/".startswith(_allowed):
            with open(_report, "a", encoding="utf-8", errors="replace") as stream:
                stream.write(f"{real}\n")
            raise ImportError(f"{real} lies in the working copy, not in the tree of this run")


if _places:
    sys.addaudithook(_watch)
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
del sys.modules["sitecustomize"]
try:
    importlib.import_module("sitecustomize")
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
