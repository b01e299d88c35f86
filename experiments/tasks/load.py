"""Load a task by name: a built-in one, or a user's own `module:OBJECT`. Imports no torch.

A user's module is beside the study and not installed: the study's folder becomes the first entry of `sys.path`, as
Python does for a script. Planning, the coordinator and the child all pass that folder.
"""

import copy
import importlib
import sys
import traceback
from pathlib import Path
from types import ModuleType

from experiments.errors import UserError
from experiments.store.code import OURS
from experiments.tasks.base import Task
from experiments.tasks.own.sources import sources, sources_of

BUILTIN = {
    "translation": "experiments.tasks.translation:TASK",
    "parsing": "experiments.tasks.parsing:TASK",
    "algorithmic": "experiments.tasks.algorithmic:TASK",
    "language_modelling": "experiments.tasks.language_modelling:TASK",
    "command": "experiments.tasks.own.command:TASK",
}


def load_task(name: str, folder: str = "") -> Task:
    """Load a task. `folder`: the study's folder, "" for a built-in study.

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
    module = _import(name, module_name, folder) if own else importlib.import_module(module_name)
    task = getattr(module, attribute, None)
    if not isinstance(task, Task):
        raise UserError(
            f"The task {name!r}: {module_name} has no {attribute} that is a Task. Make one with "
            "experiments.tasks.own.function.task (docs/own-task.md), or as a class (experiments/tasks/base.py)."
        )
    task = copy.copy(task)
    task.folder = Path(folder) if folder else None
    if own:
        code = sources(module)
        task.training_code = (*task.training_code, *code)
        task.evaluation_code = {part: (*roots, *code) for part, roots in task.evaluation_code.items()}
    return task


def _import(name: str, module_name: str, folder: str) -> ModuleType:
    if folder:
        _look_first_in(folder, module_name)
    try:
        return importlib.import_module(module_name)
    except UserError as error:
        raise UserError(f"The task {name!r}: {error}") from error
    except (Exception, SystemExit) as error:
        last = traceback.format_exception_only(error)[-1].strip()
        raise UserError(f"The task {name!r} could not be imported: {last}{_place(error)}. {_tried(folder)}") from error


def _look_first_in(folder: str, module_name: str) -> None:
    """Put `folder` first in the path; forget modules of the same name from another study's folder."""
    if sys.path[:1] != [folder]:
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
        importlib.invalidate_caches()
    top = module_name.partition(".")[0]
    here = [path for path in (Path(folder, f"{top}.py"), Path(folder, top)) if path.exists()]
    if not here:
        return
    if top in OURS or top in sys.stdlib_module_names:
        whose = "this program" if top in OURS else "Python itself"
        raise UserError(f"{here[0]} has the name of a package of {whose}: rename it, or run it by a `command` task.")
    file = Path(folder, *module_name.split(".")).with_suffix(".py")
    if file.is_file():
        sources_of(file, Path(folder), module_name)  # raises UserError for an imported file that a module of ours hides
    loaded = sys.modules.get(top)
    if loaded is not None and not _origin(loaded).is_relative_to(folder):
        for known in [known for known in sys.modules if known.partition(".")[0] == top]:
            del sys.modules[known]


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
