"""From a study to its runs. The package can be called: `ablations.plan("table3")` (docs/python.md)."""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *arguments: Any, **selectors: Any) -> Any:
        """See ablations.api.calls.plan. Loaded by name, because that module stands above this one."""
        return import_module("ablations.api.calls").plan(*arguments, **selectors)


sys.modules[__name__].__class__ = _Callable
