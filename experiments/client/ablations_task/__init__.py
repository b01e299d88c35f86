"""The package that a trainer imports: `from ablations_task import column, task` (docs/own-task.md).

This folder is the only part of the core in the process of a trainer, which may have another interpreter: it needs
Python 3.8 and nothing else. `__main__.py` is that process's program. Extras that change networks add modules to this
package there (changes.py).
"""

from .changes import folders
from .errors import Diverged, OutOfMemory, Preempted, UserError
from .trainer import Column, Counts, RunContext, Trainer, column, task

__path__ += folders()

__all__ = [
    "Column",
    "Counts",
    "Diverged",
    "OutOfMemory",
    "Preempted",
    "RunContext",
    "Trainer",
    "UserError",
    "column",
    "task",
]
