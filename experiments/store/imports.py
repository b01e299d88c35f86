"""Find the imports of Python files in their source text, and the local files that these imports run.

This module does not import or run the files. So it does not find modules whose names a program computes at run time.
The watcher of a run finds these modules (experiments/client/watch).
"""

import ast
import functools
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

OURS = ("ablations", "model", "experiments", "reports")  # the packages of this program
_INSTALLED = {"site-packages", "dist-packages"}
_SHEBANG = re.compile(rb"#!.*\bpython[\d.]*\b")


def imported_names(source: str | bytes) -> set[str]:
    """Return the dotted names that a source imports anywhere; the empty set if the text is not valid Python.

    `from a import b` gives a.b, and `from . import b` gives .b.
    """
    found: set[str] = set()
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return found
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {f"{module}{'' if module.endswith('.') else '.'}{one.name}" for one in node.names}
    return found


def imports_of(file: Path) -> frozenset[str]:
    """Return the dotted names that a file imports; the empty set if it cannot be read."""
    try:
        state = file.stat()
    except OSError:
        return frozenset()
    return _imports_of(file, (state.st_mtime_ns, state.st_size, state.st_ino))


@functools.lru_cache(4096)
def _imports_of(file: Path, state: tuple[int, int, int]) -> frozenset[str]:
    try:
        return frozenset(imported_names(file.read_bytes()))
    except OSError:
        return frozenset()


def local_files(files: Iterable[Path], folders: Sequence[Path] = ()) -> list[Path]:
    """Return the files and all Python files that they import, directly or through other imported files.

    Imported modules are searched in the folder of the importing file, in the folder from which its package is imported,
    and in `folders`. A file of an installed package is included only if one of the given files is in the same package.
    """
    found: dict[Path, None] = {}
    waiting = [Path(os.path.realpath(file)) for file in reversed(list(files))]
    tops = {_top_package(file) for file in waiting}
    while waiting:
        file = waiting.pop()
        if file in found:
            continue
        found[file] = None
        if file.suffix != ".py" and not _is_python_script(file):
            continue
        for name in sorted(imports_of(file)):
            waiting += [one for one in _modules(name, file, folders) if _counts(one, tops)]
    return list(found)


def _is_python_script(file: Path) -> bool:
    """Return whether a file without the ending .py names Python as its interpreter in its first line."""
    try:
        with file.open("rb") as stream:
            return _SHEBANG.match(stream.readline(200)) is not None
    except OSError:
        return False


def module_files(name: str, folder: Path) -> list[Path]:
    """Return the files below a folder that Python runs when it imports a module: its parent packages and the module."""
    found = []
    parts = [part for part in name.split(".") if part]
    for length in range(1, len(parts) + 1):
        base = folder.joinpath(*parts[:length])
        for path in (base / "__init__.py", base.with_name(f"{base.name}.py")):
            if os.path.isfile(path):  # noqa: PTH113 - os.path.isfile accepts any text
                found.append(path)
    return found


def _modules(name: str, file: Path, folders: Sequence[Path]) -> Iterator[Path]:
    """Yield the files that Python runs for the import of `name` in `file`.

    The first folder that contains any of these files is used.
    """
    rest = name.lstrip(".")
    level = len(name) - len(rest)
    homes = [file.parents[level - 1]] if 0 < level <= len(file.parents) else [file.parent, _home(file), *folders]
    for home in homes if not level or level <= len(file.parents) else []:
        if paths := module_files(rest, home):
            yield from (Path(os.path.realpath(path)) for path in paths)
            return


def _home(file: Path) -> Path:
    """Return the folder from which a file's package is imported."""
    folder = file.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def _top_package(file: Path) -> Path:
    """Return the top-level package folder of a file; the file itself if it is in no package."""
    home = _home(file)
    return home / file.relative_to(home).parts[0]


def _counts(file: Path, tops: set[Path]) -> bool:
    return _INSTALLED.isdisjoint(file.parts) or any(file.is_relative_to(top) for top in tops)
