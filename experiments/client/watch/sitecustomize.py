"""Start the watcher of a run's imports (_ablations_watch.py), then the user's own sitecustomize, if there is one.

Python imports this file when it starts, in the processes that the run starts too. It leaves no trace: its folder is
taken off the module path again, and `import sitecustomize` finds the user's or fails as it would without this program.
Versions of Python before 3.8 run this file too; they have no audit hooks and are not watched.
"""

import os
import sys

_here = os.path.dirname(os.path.abspath(__file__))
_has_audit_hooks = sys.version_info >= (3, 8)
if _has_audit_hooks and "ABLATIONS_WATCH" in os.environ:
    import _ablations_watch  # type: ignore[import-not-found]

    _ablations_watch.start()
    del sys.modules["_ablations_watch"]
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _here]
_kept = sys.modules.pop("sitecustomize", None)  # Python 2 clears a module that nothing names any more
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError:
    if _has_audit_hooks:
        raise  # with this module's name: Python passes over it and forgets this module
    if _kept is not None:
        sys.modules["sitecustomize"] = _kept
