"""Load a task by name: a built-in one, or a user's own `module:OBJECT`. Imports no torch.

A user's module is beside the study and not installed; planning, the coordinator and the child all pass that folder. A
function runs in a process of its own (own/process.py). A class of the contract (base.py) is imported here: its folder
is the last in the path, so that no module of it is imported in place of another.
"""

import copy
import importlib
import importlib.util
import os
import sys
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

from experiments.errors import UserError
from experiments.store.code import OURS, imports_of
from experiments.tasks.base import Task
from experiments.tasks.own.function import FunctionTask
from experiments.tasks.own.process import TrainerProcess
from experiments.tasks.own.sources import is_file

BUILTIN = {
    "translation": "experiments.tasks.translation:TASK",
    "parsing": "experiments.tasks.parsing:TASK",
    "algorithmic": "experiments.tasks.algorithmic:TASK",
    "language_modelling": "experiments.tasks.language_modelling:TASK",
    "command": "experiments.tasks.own.command:TASK",
    "imported": "experiments.tasks.own.imported:TASK",
}
_CONTRACT = "experiments.tasks.base."
OF_STUDIES = ("command", "imported")  # those whose settings each study declares


def is_built_in(name: str) -> bool:
    """Whether settings and scores of a task are this program's own, so that they can be computed again."""
    return name in BUILTIN and name not in OF_STUDIES


def load_task(name: str, folder: str = "", python: str = "") -> Task:
    """Load a task. `folder`: the study's folder, "" for a built-in study. python: the interpreter of a user's function.

    Raises UserError if the name is unknown, its module cannot be imported, or the object is not a Task.
    """
    path = BUILTIN.get(name, name)
    module_name, _, attribute = path.partition(":")
    if not attribute:
        raise UserError(
            f"There is no task {name!r}. Built-in: {', '.join(BUILTIN)}. Your own is written module:OBJECT, "
            'for example task = "my_package.my_module:TASK".'
        )
    own = name not in BUILTIN
    if own and not _is_class(module_name, folder):
        task: Task | None = _function(name, folder, python)
    else:
        module = _import(name, module_name, folder) if own else importlib.import_module(module_name)
        task = getattr(module, attribute, None)
    if not isinstance(task, Task):
        raise UserError(
            f"The task {name!r}: {module_name} has no {attribute} that is a Task. Make one with "
            "`from ablations_task import task` (docs/own-task.md), or as a class (experiments/tasks/base.py)."
        )
    if python and not isinstance(task, FunctionTask):
        raise UserError(
            f'The study has python = "{python}", and its task {name!r} runs in this program\'s process. Leave `python` '
            "out: it is for a function of your own; a command names its interpreter itself."
        )
    task = copy.copy(task)
    task.folder = Path(folder) if folder else None
    if own and not isinstance(task, FunctionTask):
        task.script = str(Path(str(module.__file__)).resolve())
    return task


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


def _is_class(module_name: str, folder: str) -> bool:
    """Whether a task is a class of the contract, by what its file imports; no code of it runs for that."""
    parts = module_name.split(".")
    roots = [Path(folder)] if folder else []
    beside = folder and any(os.path.exists(Path(folder, f"{parts[0]}{end}")) for end in ("", ".py"))  # noqa: PTH110
    top = None if beside else _spec(parts[0])
    if top is not None and top.origin:
        roots.append(Path(top.origin).parents[1 if top.submodule_search_locations else 0])
    files = [root.joinpath(*parts).with_suffix(".py") for root in roots]
    files += [root.joinpath(*parts, "__init__.py") for root in roots]
    return any(f"{name}.".startswith(_CONTRACT) for file in files if is_file(file) for name in imports_of(file))


def trains_apart(name: str, folder: str) -> bool:
    """Whether a user's trainer has a process of its own, so that the run's process needs no torch. Imports nothing."""
    module, colon, _ = name.partition(":")
    return name == "command" or (bool(colon) and not _is_class(module, folder))


def _spec(top: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(top)
    except (ImportError, ValueError):
        return None


def _import(name: str, module_name: str, folder: str) -> ModuleType:
    try:
        if folder:
            _find_in(folder, module_name)
        return importlib.import_module(module_name)
    except UserError as error:
        raise UserError(f"The task {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        last = traceback.format_exception_only(error)[-1].strip()
        raise UserError(f"The task {name!r} could not be imported: {last}{_place(error)}. {_tried(folder)}") from error


def _find_in(folder: str, module_name: str) -> None:
    """Put `folder` last in the path; forget modules of the same name from another study's folder."""
    if folder not in sys.path:
        sys.path.append(folder)
        importlib.invalidate_caches()
    top = module_name.partition(".")[0]
    here = [path for path in (Path(folder, f"{top}.py"), Path(folder, top)) if path.exists()]
    if not here:
        return
    if top in OURS or top in sys.stdlib_module_names:
        whose = "this program" if top in OURS else "Python itself"
        raise UserError(
            f"{here[0]} has the name of a package of {whose}, and a task that is a class runs in this program's "
            "process: rename it, or write the task as a function."
        )
    loaded = sys.modules.get(top)
    if loaded is not None and not _origin(loaded).is_relative_to(folder):
        for known in [known for known in sys.modules if known.partition(".")[0] == top]:
            del sys.modules[known]
    spec = PathFinder.find_spec(top, [folder])
    if top not in sys.modules and spec is not None and spec.loader is not None:  # before an installed one of that name
        module = importlib.util.module_from_spec(spec)
        sys.modules[top] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[top]
            raise


def _origin(module: ModuleType) -> Path:
    paths = [module.__file__, *getattr(module, "__path__", ())]
    return Path(next((path for path in paths if path), "/"))


def _place(error: BaseException) -> str:
    """The user's own line that raised the error, if the module was found."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    frame = frames[-1]
    if isinstance(error, SyntaxError):
        return f" ({error.filename}, line {error.lineno})"
    return f" ({frame.filename}, line {frame.lineno})" if frame.filename != __file__ else ""


def _tried(folder: str) -> str:
    if folder:
        return f"It was looked for in the study's folder {folder}, then along Python's path."
    return "It was looked for along Python's path only, since a built-in study has no folder of yours."
