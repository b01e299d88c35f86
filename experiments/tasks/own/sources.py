"""Find the files of a user's task: its module, or the scripts that its command runs, and what they import beside them.

Reads, does not import. A change in one of them makes finished runs stale. Installed packages are not followed: their
versions are recorded.
"""

import ast
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from experiments.errors import UserError
from experiments.store.code import OURS

CLIENT = "ablations_task"  # moves no number, also as a copy beside the user's module
# The contract and the adapters move no number.
_NEUTRAL = ("experiments.tasks.base", "experiments.tasks.own.function", "experiments.errors", "experiments.config")


def sources(module: ModuleType) -> tuple[str, ...]:
    """Paths of the module and of what it imports from its own folder, and the modules of ours, by dotted name."""
    file = Path(str(module.__file__)).resolve()
    root = file.parents[module.__name__.count(".") + (file.name == "__init__.py")]
    return sources_of(file, root, module.__name__)


def sources_of(
    file: Path, root: Path, name: str = "__main__", prefixes: Iterable[str] = (sys.prefix, sys.base_prefix)
) -> tuple[str, ...]:
    """The same for a file by path; `root` is the folder from which it imports, `prefixes` are of its interpreter."""
    only = name.partition(".")[0] if any(root.is_relative_to(Path(one).resolve()) for one in prefixes) else None
    found: dict[str, None] = {}
    waiting = [(file, name)]
    while waiting:
        path, known_as = waiting.pop()
        if str(path) in found:
            continue
        found[str(path)] = None
        for imported in _imports(path, known_as, root):
            if imported.partition(".")[0] in OURS and not _beside(root, imported):
                if imported not in _NEUTRAL:
                    found[imported] = None
            elif imported != CLIENT and (only is None or imported.partition(".")[0] == only):
                waiting += [(file, name) for file, name in _files(root, imported) if str(file) not in found]
    ours = sorted(name for name in found if not name.startswith("/"))
    return (*sorted(name for name in found if name.startswith("/")), *ours)


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

    files: paths of scripts, with what they import beside them, and of other files that it names. script: the first
    script, whose repository counts; "" if it names no file. interpreter: the program that runs it, as written there.
    """

    def __init__(self, command: str, folder: Path | None) -> None:
        """folder: where the command runs; None: that is not known. Raises UserError for a quote that does not end."""
        self.files: dict[str, None] = {}
        self.script = self.interpreter = ""
        if folder is not None:
            self._read(command, [folder], "", 0)
        self.script = self.script or next(iter(self.files), "")

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
            self._ran([(file, "__main__", file.parent)], program)
        elif str(file) not in self.files:
            self.files[str(file)] = None
            if ran or head.startswith(b"#!"):
                self.script, self.interpreter = self.script or str(file), self.interpreter if self.script else program
            if shell and depth < _DEEPEST:
                self._read(text, [*places, file.parent], "", depth + 1)

    def _ran(self, modules: list[tuple[Path, str, Path]], program: str) -> None:
        """Take Python files (path, dotted name, where their imports begin); the last one is the script."""
        if not self.script:
            self.script, self.interpreter = str(modules[-1][0]), program
        for file, name, root in modules:
            self.files |= dict.fromkeys(path for path in sources_of(file, root, name) if path.startswith("/"))


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


def _modules(option: str, word: str, places: list[Path]) -> list[tuple[Path, str, Path]]:
    """What `python -m WORD` runs, or `python -c WORD` imports, from a place: path, dotted name, place."""
    for place in (place.resolve() for place in places):
        if option == "-c":
            names = list(_imports(place / "-c", "__main__", place, word))
        else:
            names = [word, f"{word}.__main__"] if all(map(str.isidentifier, word.split("."))) else []
        if found := [(file, known, place) for name in names for file, known in _files(place, name)]:
            return found
    return []


def packages(code: Iterable[str]) -> tuple[str, ...]:
    """Top-level names that the files among `code` import: neither Python's own nor ours, nor files beside them."""
    files = [Path(name) for name in code if name.startswith("/")]
    found = {name.partition(".")[0] for path in files for name in _imports(path, "__main__")}
    beside = {part for path in files for part in (path.stem, path.parent.name)}
    return tuple(sorted(found - beside - {*OURS, CLIENT} - sys.stdlib_module_names))


def imports_contract(file: Path) -> bool:
    """Whether a file imports the contract itself: its task is a class, which runs in this program's process."""
    return "experiments.tasks.base" in _imports(file, "__main__")


def _beside(root: Path, imported: str) -> bool:
    """Whether a name of this program's packages is the user's own module or package here."""
    if (root / "experiments" / "tasks" / "base.py").is_file():  # a checkout of this program
        return False
    top = root / imported.partition(".")[0]
    return is_file(top.with_name(f"{top.name}.py")) or is_file(top / "__init__.py")


def _imports(path: Path, known_as: str, root: Path | None = None, source: str | None = None) -> Iterator[str]:
    """Dotted names that a file imports; `from a import b` gives a and a.b, whichever of them is a file."""
    try:
        tree = ast.parse(path.read_bytes() if source is None else source, str(path))
    except (SyntaxError, OSError, ValueError):
        return  # importing it fails with a better message
    package = known_as if path.name == "__init__.py" else known_as.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            name = ".".join(filter(None, [*base, node.module or ""]))
            if name:
                yield name
            if name.partition(".")[0] not in OURS or (root is not None and _beside(root, name)):
                yield from (".".join(filter(None, [name, alias.name])) for alias in node.names)


def _files(root: Path, name: str) -> Iterator[tuple[Path, str]]:
    """The files that importing `name` runs, as far as they lie under `root`: packages on the way, and the module."""
    parts = name.split(".")
    for length in range(1, len(parts) + 1):
        base, known_as = root.joinpath(*parts[:length]), ".".join(parts[:length])
        candidates = (base / "__init__.py", base.with_name(f"{base.name}.py"))
        yield from ((path.resolve(), known_as) for path in candidates if is_file(path))
