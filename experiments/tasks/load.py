"""Load a task by name: of the core, an extra or an installed package, or a user's own function. Imports no torch.

A user's function lies beside the study and is not installed; planning, the coordinator and the child all pass that
folder. It runs in a process of its own (own/trainer_process.py). A package adds a task without a fork by an entry point
of the group `ablations.tasks`, whose object is a Task (base.py); it runs in this program's process.
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
OF_STUDIES = ("command", "imported")  # those whose settings each study declares


def is_built_in(name: str) -> bool:
    """Return whether settings and scores of a task are this program's own, so that they can be computed again."""
    return (name in BUILTIN or name in added("tasks", packages=False)) and name not in OF_STUDIES


def named_tasks() -> dict[str, str]:
    """Name → module:OBJECT of the tasks of the core, then of those that extras and installed packages add."""
    return BUILTIN | {name: place for name, place in added("tasks").items() if name not in BUILTIN}


def load_task(name: str, folder: str = "", python: str = "") -> Task:
    """Load a task. `folder`: the study's folder, "" for a built-in study. python: the interpreter of a user's function.

    Raises UserError if the name is unknown or the function cannot be imported.
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
    """The task that trains a run. Raises UserError if it cannot be loaded."""
    return load_task(spec.task, spec.folder, spec.python).with_settings(spec.config, spec.trainer)


def validated(task: Task, spec: RunSpec) -> TaskConfig:
    """The run's settings. Raises UserError for settings that another version queued."""
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
    """Return whether a task trains in a process of its own, so that the run's process needs no torch."""
    return name == "command" or ":" in name


_functions: dict[tuple[str, str, str], tuple[Any, FunctionTask, TrainerProcess]] = {}


def _function(name: str, folder: str, python: str) -> FunctionTask:
    """The function of that name, in the process that it has, or in a new one after an edit of its code."""
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
