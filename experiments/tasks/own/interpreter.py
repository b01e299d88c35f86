"""The interpreter of a trainer: this program's, or the one that a study names with `python = "…"`."""

import os
import subprocess
import sys
from pathlib import Path

import experiments
from experiments.client import ablations_task
from experiments.errors import UserError

CLIENT = Path(ablations_task.__file__).with_name("__main__.py")
HOME = Path(experiments.__file__).parents[1]  # the folder of this program's packages
OLDEST = (3, 8)
_ASK_S = 30.0


def interpreter(python: str, folder: Path | None) -> Path:
    """The file that runs a trainer. `python`: as the study names it, relative to the study's `folder`; "": ours.

    Links are not followed: those of a virtual environment lead to the interpreter without its packages.
    Raises UserError if it is missing or cannot be executed.
    """
    if not python:
        return Path(sys.executable)
    path = (folder or Path.cwd()) / Path(python).expanduser()
    if not path.exists():
        raise UserError(_cannot(python, path, "does not exist"))
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(_cannot(python, path, "is not a file that can be executed"))
    return path


def refuse_silent(python: str, path: Path, code: int | None) -> None:
    """Raise UserError for an interpreter that ended before it answered: why it cannot run a trainer."""
    ask = [str(path), "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_ASK_S, stdin=subprocess.DEVNULL)
        version = tuple(int(part) for part in done.stdout.strip().split("."))
    except (OSError, ValueError, subprocess.TimeoutExpired):
        raise UserError(_cannot(python, path, "is no Python interpreter")) from None
    if version < OLDEST:
        raise UserError(_cannot(python, path, f"is Python {done.stdout.strip()}"))
    raise UserError(_cannot(python, path, f"ended with exit code {code} before it ran anything"))


def environment() -> dict[str, str]:
    """The environment of a trainer: the user's own, without the path to this program."""
    kept = {**os.environ, "PYTHONUNBUFFERED": "1", "ABLATIONS_PROGRAM": str(HOME)}
    path = [one for one in kept.pop("PYTHONPATH", "").split(os.pathsep) if one and Path(one).absolute() != HOME]
    kept.pop("PYTHONSAFEPATH", None)
    return kept | ({"PYTHONPATH": os.pathsep.join(path)} if path else {})


def _cannot(python: str, path: Path, why: str) -> str:
    where = f'python = "{python}": {path}' if python else str(path)
    return (
        f"{where} {why}. Name an interpreter of Python {OLDEST[0]}.{OLDEST[1]} or newer, relative to the study's "
        'folder or absolute, such as python = "../myproject/.venv/bin/python".'
    )
