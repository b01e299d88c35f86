"""Load a task by name: a built-in one, one of an installed package, or a user's own function. Imports no torch.

A user's function lies beside the study and is not installed; planning, the coordinator and the child all pass that
folder. It runs in a process of its own (own/process.py). A package adds a task without a fork by an entry point of the
group `ablations.tasks`, whose object is a Task (base.py); it runs in this program's process.
"""

import copy
import functools
import importlib
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from experiments.errors import UserError
from experiments.tasks.base import Task
from experiments.tasks.own.function import FunctionTask
from experiments.tasks.own.process import TrainerProcess

BUILTIN = {
    "translation": "experiments.tasks.translation:TASK",
    "parsing": "experiments.tasks.parsing:TASK",
    "algorithmic": "experiments.tasks.algorithmic:TASK",
    "language_modelling": "experiments.tasks.language_modelling:TASK",
    "command": "experiments.tasks.own.command:TASK",
    "imported": "experiments.tasks.own.imported:TASK",
}
OF_STUDIES = ("command", "imported")  # those whose settings each study declares


def is_built_in(name: str) -> bool:
    """Whether settings and scores of a task are this program's own, so that they can be computed again."""
    return name in BUILTIN and name not in OF_STUDIES


@functools.cache
def named_tasks() -> dict[str, str]:
    """Name → module:OBJECT of the built-in tasks and of those that installed packages add."""
    return {**{entry.name: entry.value for entry in entry_points(group="ablations.tasks")}, **BUILTIN}


def load_task(name: str, folder: str = "", python: str = "") -> Task:
    """Load a task. `folder`: the study's folder, "" for a built-in study. python: the interpreter of a user's function.

    Raises UserError if the name is unknown or the function cannot be imported.
    """
    named = named_tasks()
    if name not in named and ":" not in name:
        raise UserError(
            f"There is no task {name!r}. There are: {', '.join(named)}. Your own function is written module:OBJECT, "
            'for example task = "my_module:TASK"; a command needs no task.'
        )
    if name not in named:
        task: Task = _function(name, folder, python)
    elif python:
        raise UserError(
            f'The study has python = "{python}", and its task {name!r} runs in this program\'s process. Leave `python` '
            "out: it is for a function of your own; a command names its interpreter itself."
        )
    else:
        module, _, attribute = named[name].partition(":")
        task = getattr(importlib.import_module(module), attribute)
    task = copy.copy(task)
    task.folder = Path(folder) if folder else None
    return task


def trains_apart(name: str) -> bool:
    """Whether a task trains in a process of its own, so that the run's process needs no torch."""
    return name == "command" or ":" in name


_functions: dict[tuple[str, str, str], tuple[Any, FunctionTask, TrainerProcess]] = {}


def _function(name: str, folder: str, python: str) -> FunctionTask:
    """The function of that name, in the process that it has, or in a new one after an edit of its code."""
    key = (name, folder, python)
    if key in _functions:
        state, task, process = _functions[key]
        if state == _state(task):
            return task
        process.close()
    process = TrainerProcess(name, folder, python)
    task = FunctionTask(process, python)
    _functions[key] = (_state(task), task, process)
    return task


def _state(task: FunctionTask) -> list[Any]:
    """What an edit of the task's code changes."""
    found = [file.stat() if file.exists() else None for file in task.files]
    return [(one.st_mtime_ns, one.st_size, one.st_ino) if one else None for one in found]
