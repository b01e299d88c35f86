"""Ablation tables as code: the Python functions `load`, `plan` and `run` (docs/python.md).

Importing this package imports no other module of the program. Each of these names is imported when it is first used.
"""

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ablations.api import load as load
    from ablations.api import plan as plan
    from ablations.api import run as run
    from experiments.errors import UserError as UserError

_FROM = {**dict.fromkeys(("load", "plan", "run"), "ablations.api"), "UserError": "experiments.errors"}
__all__ = ["UserError", "load", "plan", "run"]

# A wheel installs the packages `model`, `experiments` and `reports` in the folder `packages` (setup.py). In a checkout,
# these packages are next to `ablations`. The folder with these packages is inserted into sys.path before site-packages,
# because site-packages may have packages of the same names. It is inserted after the folders of a user's script.
_packages = Path(__file__).with_name("packages")
_home = str(_packages if _packages.is_dir() else _packages.parents[1])
if _home not in sys.path:
    _installed = (at for at, one in enumerate(sys.path) if Path(one).name in ("site-packages", "dist-packages"))
    sys.path.insert(next(_installed, len(sys.path)), _home)


def __getattr__(name: str) -> Any:
    if name in _FROM:
        try:
            return getattr(import_module(_FROM[name]), name)
        except ModuleNotFoundError as error:
            hiding = sys.modules.get(str(error.name).partition(".")[0])
            if hiding is None:
                raise
            raise ImportError(f"{hiding.__file__} hides this program's package. Import ablations from another folder, "
                              "or use the command `ablations`, which is not affected.") from None  # fmt: skip
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
