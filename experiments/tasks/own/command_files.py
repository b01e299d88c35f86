"""Find the scripts and other files that a command names. This module reads the files and runs nothing.

A change in one of these files, or in a module that a Python script imports from its folder, makes finished runs
stale.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from experiments.command_words import PLACEHOLDER, PYTHON, QUOTED, TOKEN
from experiments.errors import UserError
from experiments.store.imports import imported_names, module_files

# Programs that run a script or another program. Their files are not the code of a trainer.
_PROGRAM = re.compile(
    r"(python|pypy|ipython|sh|bash|dash|zsh|ksh|fish|perl|ruby|node|julia|Rscript|lua|java|env|uvx?|poetry|pipenv|conda"
    r"|mamba|micromamba|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|time|timeout|nice|nohup|numactl|taskset)[\d.]*"
)
_OF_PYTHON, _OF_A_SHELL = re.compile(rb"#!.*\bpython[\d.]*\b"), re.compile(rb"#!.*\b(ba|da|z|k)?sh\b")
_HEAD, _LONGEST_SHELL = 256, 1 << 20  # bytes to read from the beginning of a file, and then from a shell script
_DEEPEST = 3  # maximum nesting of shell scripts and quoted commands


class Scripts:
    """The files that a command names.

    The command is split into words as a shell does. Variables that the command sets are not expanded.

    files: the scripts, modules and other files that the command names.
    script: the first script, whose repository is recorded; "" if the command names no file.
    interpreter: the program that runs the script, as the command names it.
    """

    def __init__(self, command: str, folder: Path | None) -> None:
        """Read a command. folder: the folder in which the command runs; None if it is unknown.

        Raises UserError if a quote is not closed.
        """
        self.files: dict[Path, None] = {}
        self.script = self.interpreter = ""
        if folder is not None:
            self._read(command, [folder], "", 0)
        self.script = self.script or next(map(str, self.files), "")

    def _read(self, text: str, places: list[Path], program: str, depth: int) -> None:
        """Add the files that shell commands name. places: folders to which the names may be relative.

        program: the program that runs the commands.
        """
        before = ""
        for token in _words(text, strict=depth == 0):
            original = next((place[3] for place in PLACEHOLDER.finditer(token) if place[3]), "")
            each = original or token  # the placeholder {settings.yaml:FILE} names FILE
            named = os.path.expandvars(os.path.expanduser(each))  # noqa: PTH111 - os.path accepts any text
            paths = [place / named for place in places]
            if before == "cd":
                places = [path for path in paths if os.path.isdir(path)] or places  # noqa: PTH112 - see is_file
            elif before in ("-m", "--module", "-c") and (modules := _modules(before, each, places)):
                self._ran(modules, program)
            elif _PROGRAM.fullmatch(paths[0].name) or _is_installed(paths[0]):
                program = each
            elif before != ">" and (file := next(filter(is_file, paths), None)):
                self._name(file.resolve(), places, program, depth, ran=before == program != "")
            elif depth < _DEEPEST and any(character.isspace() for character in each):  # bash -c "python train.py"
                self._read(each, places, program, depth + 1)
            before = each

    def _name(self, file: Path, places: list[Path], program: str, depth: int, ran: bool) -> None:
        """Add a file. ran: whether the file follows directly after a program, which makes it a script."""
        with file.open("rb") as stream:
            head = stream.read(_HEAD)
            shell = file.suffix in (".sh", ".bash") or _OF_A_SHELL.match(head) is not None
            text = (head + stream.read(_LONGEST_SHELL)).decode(errors="replace") if shell else ""
        if file.suffix == ".py" or _OF_PYTHON.match(head):
            self._ran([file], program)
        elif file not in self.files:
            self.files[file] = None
            if ran or head.startswith(b"#!"):
                self.script, self.interpreter = self.script or str(file), self.interpreter if self.script else program
            if shell and depth < _DEEPEST:
                self._read(text, [*places, file.parent], "", depth + 1)

    def _ran(self, files: list[Path], program: str) -> None:
        """Add Python files. The last one is the script."""
        if not self.script:
            self.script, self.interpreter = str(files[-1]), program
        self.files |= dict.fromkeys(files)


def _words(text: str, strict: bool) -> Iterator[str]:
    """Yield the words of shell commands, without their quotes, and the operators.

    strict: raise UserError if a quote is not closed.
    """
    for token in TOKEN.finditer(text):
        if strict and token[0] in ("'", '"') and "<<" not in text:  # a here-document may contain apostrophes
            raise UserError(f"The command is not valid in a shell: a quote is not closed: {text[token.start() :]}")
        if token[1] is not None:
            yield re.sub(QUOTED, _unquoted, token[1])
        elif not token[0].isspace():
            yield token[0]


def script_of(command: str) -> str:
    """Return the Python script that a command such as `python -u train.py …` runs; "" if it is not certain."""
    words = iter(_words(command, strict=False))
    # The first word may follow assignments, as in CUDA_VISIBLE_DEVICES=0 python …
    first = next((word for word in words if not re.fullmatch(r"\w+=.*", word)), "")
    script = next((word for word in words if word not in ("-u", "-O", "-OO", "-B", "-I", "-s", "-E")), "")
    certain = PYTHON.fullmatch(first) and re.fullmatch(r"[\w./-]+\.py", script) and not script.startswith("-")
    return script if certain else ""


def _unquoted(part: re.Match[str]) -> str:
    if part[0][0] == "\\":
        return part[0][1:].strip("\n")
    return re.sub(r"\\([\"\\$`\n])", r"\1", part[0][1:-1]) if part[0][0] == '"' else part[0][1:-1]


def _is_installed(path: Path) -> bool:
    """Return whether a file is a program of a virtual environment, such as torchrun."""
    home = path.parent.parent
    return path.parent.name == "bin" and (is_file(home / "pyvenv.cfg") or is_file(home / "conda-meta" / "history"))


def is_file(path: Path) -> bool:
    """Return whether a path is a file. Unlike Path.is_file, return False if a name is too long for a file."""
    return os.path.isfile(path)  # noqa: PTH113


def _modules(option: str, word: str, places: list[Path]) -> list[Path]:
    """Return the files that `python -m WORD` runs or `python -c WORD` imports.

    The first folder that contains any of these files is used.
    """
    if option == "-c":
        names = sorted(imported_names(word))
    else:
        names = [word, f"{word}.__main__"] if all(map(str.isidentifier, word.split("."))) else []
    for place in (place.resolve() for place in places):
        if files := [file.resolve() for name in names for file in module_files(name, place)]:
            return list(dict.fromkeys(files))
    return []
