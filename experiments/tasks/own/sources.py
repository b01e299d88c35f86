"""What a command runs: the scripts and other files that its words name. Reads them, runs nothing.

A change in one of them, or in what a Python script uses of the files in its folder, makes finished runs stale.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from experiments.errors import UserError
from experiments.store import syntax
from experiments.store.code import Root, root_at

# Programs that run a script or another program: their own repository says nothing of what was trained.
_PROGRAM = re.compile(
    r"(python|pypy|ipython|sh|bash|dash|zsh|ksh|fish|perl|ruby|node|julia|Rscript|lua|java|env|uvx?|poetry|pipenv|conda"
    r"|mamba|micromamba|torchrun|accelerate|deepspeed|mpirun|mpiexec|srun|time|timeout|nice|nohup|numactl|taskset)[\d.]*"
)
_OF_PYTHON, _OF_A_SHELL = re.compile(rb"#!.*\bpython[\d.]*\b"), re.compile(rb"#!.*\b(ba|da|z|k)?sh\b")
_HEAD, _LONGEST_SHELL = 256, 1 << 20  # bytes read of any file; of a shell script, whose own commands count too
_DEEPEST = 3  # scripts and quoted commands within another
_PART = r"\\[\s\S]|'[^']*'|\"(?:\\[\s\S]|[^\"\\])*\""  # escaped or quoted
# A comment, a word, or else a blank, an operator, or a quote that does not end.
_TOKEN = re.compile(rf"(?<![^\s;|&()])#.*|((?:{_PART}|[^\s\\'\"`;|&()<>])+)|[\s\S]")


class Scripts:
    """The files that a command names, found by reading it as a shell does; variables of its own are not known.

    roots: scripts, modules, and other files that it names. script: the first script, whose repository counts; "" if it
    names no file. interpreter: the program that runs it, as written there.
    """

    def __init__(self, command: str, folder: Path | None) -> None:
        """folder: where the command runs; None: that is not known. Raises UserError for a quote that does not end."""
        self.roots: dict[Root, None] = {}
        self.script = self.interpreter = ""
        if folder is not None:
            self._read(command, [folder], "", 0)
        self.script = self.script or next((str(root.file) for root in self.roots), "")

    def _read(self, text: str, places: list[Path], program: str, depth: int) -> None:
        """Take the files that shell commands name, relative to one of the places; `program` runs the commands."""
        before = ""
        for word in _words(text, strict=depth == 0):
            named = os.path.expandvars(os.path.expanduser(word))  # noqa: PTH111 - takes any text
            paths = [place / named for place in places]
            if before == "cd":
                places = [path for path in paths if os.path.isdir(path)] or places  # noqa: PTH112 - as is_file
            elif before in ("-m", "--module", "-c") and (modules := _modules(before, word, places)):
                self._ran(modules, program)
            elif _PROGRAM.fullmatch(paths[0].name) or _is_installed(paths[0]):
                program = word
            elif before != ">" and (file := next(filter(is_file, paths), None)):
                self._name(file.resolve(), places, program, depth, ran=before == program != "")
            elif depth < _DEEPEST and any(character.isspace() for character in word):  # bash -c "python train.py"
                self._read(word, places, program, depth + 1)
            before = word

    def _name(self, file: Path, places: list[Path], program: str, depth: int, ran: bool) -> None:
        """Take a file; ran: it stands directly behind a program, so it is a script whatever it contains."""
        with file.open("rb") as stream:
            head = stream.read(_HEAD)
            shell = file.suffix in (".sh", ".bash") or _OF_A_SHELL.match(head) is not None
            text = (head + stream.read(_LONGEST_SHELL)).decode(errors="replace") if shell else ""
        if file.suffix == ".py" or _OF_PYTHON.match(head):
            self._ran([root_at(file)], program)
        elif (root := root_at(file)) not in self.roots:
            self.roots[root] = None
            if ran or head.startswith(b"#!"):
                self.script, self.interpreter = self.script or str(file), self.interpreter if self.script else program
            if shell and depth < _DEEPEST:
                self._read(text, [*places, file.parent], "", depth + 1)

    def _ran(self, roots: list[Root], program: str) -> None:
        """Take Python files; the last one is the script."""
        if not self.script:
            self.script, self.interpreter = str(roots[-1].file), program
        self.roots |= dict.fromkeys(roots)


def _words(text: str, strict: bool) -> Iterator[str]:
    """The words of shell commands without their quotes, and their operators. strict: refuse a quote without end."""
    for token in _TOKEN.finditer(text):
        if strict and token[0] in ("'", '"') and "<<" not in text:  # a document may have apostrophes
            raise UserError(f"The command is not one that a shell reads: a quote has no end: {text[token.start() :]}")
        if token[1] is not None:
            yield re.sub(_PART, _unquoted, token[1])
        elif not token[0].isspace():
            yield token[0]


def _unquoted(part: re.Match[str]) -> str:
    if part[0][0] == "\\":
        return part[0][1:].strip("\n")
    return re.sub(r"\\([\"\\$`\n])", r"\1", part[0][1:-1]) if part[0][0] == '"' else part[0][1:-1]


def _is_installed(path: Path) -> bool:
    """Whether it is a program of a virtual environment: torchrun, or any other interpreter."""
    home = path.parent.parent
    return path.parent.name == "bin" and (is_file(home / "pyvenv.cfg") or is_file(home / "conda-meta" / "history"))


def is_file(path: Path) -> bool:
    """Path.is_file, for any text: no file has a name of more than 255 characters, and that raises an error there."""
    return os.path.isfile(path)  # noqa: PTH113


def _modules(option: str, word: str, places: list[Path]) -> list[Root]:
    """What `python -m WORD` runs, or `python -c WORD` imports, from one of the places."""
    if option == "-c":
        names = sorted(syntax.imports(syntax.read(word.encode())))
    else:
        names = [word, f"{word}.__main__"] if all(map(str.isidentifier, word.split("."))) else []
    for place in (place.resolve() for place in places):
        if found := [root for name in names for root in _files(place, name)]:
            return list(dict.fromkeys(found))
    return []


def _files(place: Path, name: str) -> Iterator[Root]:
    """The files that importing `name` runs, as far as they lie in a place: packages on the way, and the module."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        base, known_as = place.joinpath(*parts[:length]), ".".join(parts[:length])
        candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
        yield from (root_at(path, module=known_as) for path in candidates if is_file(path))
