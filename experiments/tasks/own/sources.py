"""Find the files of a user's task: its module, and the module's imports from its folder. Reads, does not import.

A change in one of them makes finished runs stale. Installed packages are not followed: their versions are recorded.
"""

import ast
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

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
    return top.with_name(f"{top.name}.py").is_file() or (top / "__init__.py").is_file()


def _imports(path: Path, known_as: str, root: Path | None = None) -> Iterator[str]:
    """Dotted names that a file imports; `from a import b` gives a and a.b, whichever of them is a file."""
    try:
        tree = ast.parse(path.read_bytes(), str(path))
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
        yield from ((path.resolve(), known_as) for path in candidates if path.is_file())
