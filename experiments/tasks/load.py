"""From a task's name to the task: a built-in one, or a user's own `module:OBJECT`. Imports no torch."""

import importlib
import traceback

from experiments.errors import UserError
from experiments.tasks.base import Task

BUILTIN = {"translation": "experiments.tasks.translation:TASK"}


def load_task(name: str) -> Task:
    """Raises UserError if the name is unknown, its module does not import, or the object is no Task."""
    path = BUILTIN.get(name, name)
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise UserError(
            f"There is no task {name!r}. Built-in: {', '.join(BUILTIN)}. Your own is written module:OBJECT, "
            'for example task = "my_package.my_module:TASK".'
        )
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        if path == BUILTIN.get(name):
            raise  # ours: a bug, with its traceback
        last = traceback.format_exception_only(error)[-1].strip()
        raise UserError(f"The task {name!r} could not be imported: {last}. Is its folder on PYTHONPATH?") from error
    task = getattr(module, attribute, None)
    if not isinstance(task, Task):
        raise UserError(
            f"The task {name!r}: {module_name} has no {attribute} that is a Task (see experiments/tasks/base.py)."
        )
    return task
