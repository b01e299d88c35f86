"""The errors that the package `modules` raises in the processes of this program.

In the process of a trainer, the package is `ablations_task.modules` and imports `ablations_task.errors` instead.
"""

from experiments.errors import UserError as UserError
