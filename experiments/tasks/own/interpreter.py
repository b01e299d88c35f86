"""The interpreter of a trainer: this program's, or the one that a study names with `python = "…"`."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import experiments
from experiments.client import ablations_task
from experiments.errors import UserError
from experiments.processes.keeper import kept

CLIENT = Path(ablations_task.__file__).with_name("__main__.py")
HOME = Path(experiments.__file__).parents[1]  # the folder of this program's packages
OLDEST = (3, 8)
ANSWER_S = 60.0  # to its first words: an interpreter on a network disk may be slow
_LONGEST = 1 << 16  # bytes before these words, which the start of an interpreter may print


def interpreter(python: str, folder: Path | None) -> Path:
    """The file that runs a trainer. `python`: as the study names it, relative to the study's `folder`; "": ours.

    Links are not followed: those of a virtual environment lead to the interpreter without its packages.
    Raises UserError if it is missing or cannot be executed.
    """
    if not python:
        return Path(sys.executable)
    path = (folder or Path.cwd()) / os.path.expanduser(python)  # noqa: PTH111 - which takes any text
    if not os.path.exists(path):  # noqa: PTH110
        raise UserError(_cannot(python, path, "does not exist"))
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(_cannot(python, path, "is not a file that can be executed"))
    return path


def first_lines(source: int, python: str, path: Path) -> Iterator[bytes]:
    """The lines that an interpreter prints first, until it ends or has printed 64 KiB.

    Raises UserError where nothing comes within ANSWER_S seconds.
    """
    said, count, until = b"", 0, time.monotonic() + ANSWER_S
    while count < _LONGEST:
        if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
            raise UserError(_cannot(python, path, f"has not answered within {ANSWER_S:g} s"))
        more = os.read(source, _LONGEST)
        *lines, said = (said + more).split(b"\n")
        yield from lines
        if not more:
            return
        count += len(more)


def refuse_silent(python: str, path: Path, code: int | None) -> None:
    """Raise UserError for an interpreter that did not run our program: why it cannot run a trainer."""
    ask = [str(path), "-c", "import sys; print('version=%d.%d' % sys.version_info[:2])"]
    with kept(ask, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as asked:
        assert asked.process.stdout is not None
        lines = first_lines(asked.process.stdout.fileno(), python, path)
        answer = next((line for line in lines if line.startswith(b"version=")), b"").decode().removeprefix("version=")
    if not answer:
        raise UserError(_cannot(python, path, "is no Python interpreter"))
    if tuple(map(int, answer.split("."))) < OLDEST:
        raise UserError(_cannot(python, path, f"is Python {answer}"))
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
