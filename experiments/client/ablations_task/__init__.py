"""The package that a trainer imports: `from ablations_task import column, task` (docs/own-task.md).

A trainer runs in its own process, which may have another Python interpreter. That process imports only this folder of
the core. The folder therefore needs Python 3.8 or newer and no other package. `__main__.py` is the program of the
process. Extras that change networks add modules to this package in the process (changes.py).
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
