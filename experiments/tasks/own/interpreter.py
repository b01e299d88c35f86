"""The interpreter of a trainer, which is this program's interpreter unless the study sets `python`."""

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from experiments.client import ablations_task
from experiments.errors import UserError
from experiments.processes.keeper import kept

CLIENT = Path(ablations_task.__file__).with_name("__main__.py")
OLDEST = (3, 8)
ANSWER_S = 60.0  # time limit for the first line; an interpreter on a network disk may start slowly
_LONGEST = 1 << 16  # maximum number of bytes that an interpreter may print when it starts


def interpreter(python: str, folder: Path | None) -> Path:
    """Return the interpreter that runs a trainer.

    Symbolic links are not resolved. The link in a virtual environment leads to an interpreter that does not have the
    packages of the environment.

    python: the interpreter, as the study names it; "" for the interpreter of this program.
    folder: the study's folder, to which `python` is relative.

    Raises UserError if the file is missing or cannot be executed.
    """
    if not python:
        return Path(sys.executable)
    path = (folder or Path.cwd()) / os.path.expanduser(python)  # noqa: PTH111 - os.path accepts any text
    if not os.path.exists(path):  # noqa: PTH110
        raise UserError(_cannot(python, path, "does not exist"))
    if not path.is_file() or not os.access(path, os.X_OK):
        raise UserError(_cannot(python, path, "is not a file that can be executed"))
    return path


def first_lines(source: int, python: str, path: Path) -> Iterator[bytes]:
    """Yield the first lines that an interpreter prints, until it ends or has printed 64 KiB.

    Raises UserError if the interpreter has not ended after ANSWER_S seconds and prints nothing more.
    """
    rest, count, until = b"", 0, time.monotonic() + ANSWER_S
    while count < _LONGEST:
        if not select.select([source], [], [], max(0.0, until - time.monotonic()))[0]:
            raise UserError(_cannot(python, path, f"has not answered within {ANSWER_S:g} s"))
        more = os.read(source, _LONGEST)
        *lines, rest = (rest + more).split(b"\n")
        yield from lines
        if not more:
            return
        count += len(more)


def refuse_silent(python: str, path: Path, code: int | None) -> None:
    """Raise UserError with the reason why an interpreter cannot run a trainer. code: its exit code."""
    ask = [str(path), "-c", "import sys; print('version=%d.%d' % sys.version_info[:2])"]
    with kept(ask, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as asked:
        assert asked.process.stdout is not None
        lines = first_lines(asked.process.stdout.fileno(), python, path)
        answer = next((line for line in lines if line.startswith(b"version=")), b"").decode().removeprefix("version=")
    if not answer:
        raise UserError(_cannot(python, path, "is not a Python interpreter"))
    if tuple(map(int, answer.split("."))) < OLDEST:
        raise UserError(_cannot(python, path, f"is Python {answer}"))
    raise UserError(_cannot(python, path, f"ended with exit code {code} before it ran anything"))


def _cannot(python: str, path: Path, why: str) -> str:
    where = f'python = "{python}": {path}' if python else str(path)
    return (
        f"{where} {why}. Name an interpreter of Python {OLDEST[0]}.{OLDEST[1]} or newer, relative to the study's "
        'folder or absolute, such as python = "../myproject/.venv/bin/python".'
    )
