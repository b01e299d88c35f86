"""The errors that the package `modules` raises, in this program's processes.

In the process of a trainer that package belongs to `ablations_task`, and imports from `ablations_task.errors`.
"""

from experiments.errors import UserError as UserError
