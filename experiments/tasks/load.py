"""Load a task by its name.

A task is part of the core, an extra or an installed package, or it is a user's function.

A user's function is in the folder of the study and is not installed. Therefore the plan, the coordinator and the child
pass this folder to `load_task`. The function runs in a separate process (own/trainer_process.py).

A package adds a task by an entry point of the group `ablations.tasks`, whose object is a Task (base.py). Such a task
runs in the process of this program.

This module does not import torch.
"""

import copy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from experiments.config.network_change import why_unknown, with_changes
from experiments.config.task_config import TaskConfig
from experiments.errors import UserError
from experiments.run_spec import RunSpec
from experiments.store.durable import states_of
from experiments.tasks.base import Task
from experiments.tasks.own.function import FunctionTask
from experiments.tasks.own.trainer_process import TrainerProcess
from model.extensions import ExtensionError, added, load

BUILTIN = {
    "translation": "experiments.tasks.translation:TASK",
    "command": "experiments.tasks.own.command:TASK",
    "imported": "experiments.tasks.own.command:IMPORTED",
}
OF_STUDIES = ("command", "imported")  # tasks whose settings each study declares


def is_built_in(name: str) -> bool:
    """Return whether this program defines the settings and scores of a task. If so, it can recompute the scores."""
    return (name in BUILTIN or name in added("tasks", packages=False)) and name not in OF_STUDIES


def named_tasks() -> dict[str, str]:
    """Return a dict from the names of all tasks of the core, of extras and of installed packages to module:OBJECT."""
    return BUILTIN | {name: place for name, place in added("tasks").items() if name not in BUILTIN}


def load_task(name: str, folder: str = "", python: str = "") -> Task:
    """Load a task.

    folder: the study's folder; "" for a built-in study.
    python: the interpreter of a user's function; "" for this program's interpreter.

    Raises UserError if the name is unknown or the task cannot be imported.
    """
    named = named_tasks()
    if name not in named and ":" not in name:
        raise UserError(
            f"There is no task {name!r}. There are: {', '.join(named)}. Write your own function as module:OBJECT, "
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
        try:
            task = load(named[name])
        except ExtensionError as error:
            raise UserError(str(error)) from error
    task = copy.copy(task)
    task.folder = Path(folder) if folder else None
    task.config_type = with_changes(task.config_type)
    return task


def task_of(spec: RunSpec) -> Task:
    """Load the task that trains a run. Raises UserError if it cannot be loaded."""
    return load_task(spec.task, spec.folder, spec.python).with_settings(spec.config, spec.trainer)


def validated(task: Task, spec: RunSpec) -> TaskConfig:
    """Return the validated settings of a run.

    Raises UserError if this version does not know one of the settings or does not accept its value.
    """
    try:
        return task.config_type.from_mapping(spec.config)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        why = f" {why_unknown(name)}" if first["type"] == "extra_forbidden" else ""
        raise UserError(
            f"The run {spec.run_id} was queued with a setting that this version does not know "
            f"({name}: {first['msg']}).{why} Correct its row in the study and queue it again; "
            f"`ablations cancel {spec.run_id}` takes this run out of the queue."
        ) from None


def trains_apart(name: str) -> bool:
    """Return whether a task trains in a separate process, so that the child process needs no torch."""
    return name == "command" or ":" in name


_functions: dict[tuple[str, str, str], tuple[Any, FunctionTask, TrainerProcess]] = {}


def _function(name: str, folder: str, python: str) -> FunctionTask:
    """Return the task of a user's function. If the function's code was edited, its process is started again."""
    key = (name, folder, python)
    if key in _functions:
        state, task, process = _functions[key]
        if state == states_of(task.files):
            return task
        process.close()
    process = TrainerProcess(name, folder, python)
    task = FunctionTask(process, python)
    _functions[key] = (states_of(task.files), task, process)
    return task
