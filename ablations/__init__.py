"""Ablation tables as code. In Python: `ablations.load`, `ablations.plan`, `ablations.run` (docs/python.md).

Importing the package imports nothing else; each of these names is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablations.api import load as load
    from ablations.api import plan as plan
    from ablations.api import run as run
    from experiments.errors import UserError as UserError

_FROM = {**dict.fromkeys(("load", "plan", "run"), "ablations.api"), "UserError": "experiments.errors"}
__all__ = ["UserError", "load", "plan", "run"]


def __getattr__(name: str) -> Any:
    if name in _FROM:
        return getattr(import_module(_FROM[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
