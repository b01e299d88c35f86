"""Watches what a run imports: its code must be its own tree's, never the working copy's (docs/code-rows.md).

Python imports this at its start, in the processes that the run starts too. A source, bytecode or extension file of the
repository outside of the tree and of the declared links is named in a report, and not imported. At its end each process
reports the versions of the installed packages that it imported. The user's own
sitecustomize follows. Runs on Python 3.8 too.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


# Two reports, the repository, and what is allowed in it.
_report, _packages, *_places = os.environ.get("ABLATIONS_WATCH", "\n").split("\n")
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


def _tell() -> None:
    from importlib import metadata  # takes a while

    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name, module in list(sys.modules.items()):
        if "." not in name and "-packages" in (getattr(module, "__file__", None) or ""):
            try:
                found[name] = metadata.version(name)
            except metadata.PackageNotFoundError:  # PIL is Pillow's
                found[name] = str(getattr(module, "__version__", ""))
    with open(_packages, "a", encoding="utf-8", errors="replace") as stream:
        stream.write("".join(f"{name} {version}\n" for name, version in found.items() if version))


if _places:
    sys.addaudithook(_watch)
    atexit.register(_tell)
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _HERE]
del sys.modules["sitecustomize"]
try:
    importlib.import_module("sitecustomize")
except ImportError as _error:
    if _error.name != "sitecustomize":
        raise
