"""Start the watcher of a run's imports (_ablations_watch.py), then run the user's sitecustomize, if there is one.

Python imports this file when it starts. This also holds for the processes that the run starts. The file then removes
its folder from the module search path. `import sitecustomize` therefore finds the user's module, or fails as it would
without this program. Python versions before 3.8 also run this file, but they have no audit hooks and are not watched.
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
_kept = sys.modules.pop("sitecustomize", None)  # keep a reference: Python 2 clears a module without references
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
except ImportError:
    if _has_audit_hooks:
        raise  # Python ignores an ImportError that names sitecustomize, and then removes this module
    if _kept is not None:
        sys.modules["sitecustomize"] = _kept
