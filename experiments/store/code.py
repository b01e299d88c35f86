"""What counts as changed code: a digest of the syntax trees of the modules that a computation imports.

Comments, docstrings, annotations and blocks under `if TYPE_CHECKING` do not count, so prose never makes a result stale.
Trees are cached for the user by file content, because parsing all of them takes a second.

A digest is "2-" and 16 hex digits. Earlier versions wrote 16 digits over the bytes of whole packages: such a digest
never equals a present one, so results with it count as made by another revision of the code.
"""

import ast
import functools
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.store.user_cache import UserCache

FORMAT = 2
OURS = ("ablations", "model", "experiments", "reports")  # the packages of this program
# Storage, processes and contracts between packages: they pass numbers on but compute none. Not counted, not followed.
NEUTRAL = (
    "ablations", "reports", "experiments.child", "experiments.errors", "experiments.events", "experiments.exchange",
    "experiments.jobs", "experiments.processes", "experiments.records", "experiments.store", "experiments.tracking",
    "experiments.tasks.base", "experiments.tasks.columns", "experiments.tasks.load", "experiments.tasks.own",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
_SKIPPED = frozenset({"annotation", "returns", "type_comment", "type_params", "ctx", "simple", "kind"})


class Module(NamedTuple):
    """One file: the digest of its tree, and what it imports by absolute name."""

    digest: str
    imports: tuple[str, ...]


def code_digest(roots: Iterable[str]) -> str:
    """The digest of modules and packages of this program, by dotted name, with their imports of it; and of files.

    A root that begins with "/" is a user's file: Python counts by its tree, other files by their bytes. Its path does
    not count, since a study may be moved. Raises ModuleNotFoundError for a root that does not exist.
    """
    return code_digests({"": roots})[""]


def code_digests(parts: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """`code_digest` for each of several parts of a computation."""
    with UserCache(f"syntax-{FORMAT}") as cache:
        return {part: _digest(tuple(roots), cache) for part, roots in parts.items()}


def _digest(roots: tuple[str, ...], cache: UserCache) -> str:
    whole = hashlib.sha256()
    for path in (name for name in roots if name.startswith("/")):
        whole.update(f"{Path(path).name}\0{_read(Path(path), cache).digest}\n".encode())
    for name, digest in sorted(_closure((n for n in roots if not n.startswith("/")), cache).items()):
        whole.update(f"{name}\0{digest}\n".encode())
    return f"{FORMAT}-{whole.hexdigest()[:16]}"


def _closure(roots: Iterable[str], cache: UserCache) -> dict[str, str]:
    """The digest of each module of this program that the roots import, by dotted name."""
    found: dict[str, str] = {}
    waiting: list[str] = []
    for root in roots:
        below = list(_files(root))
        if not below:
            raise ModuleNotFoundError(f"no module named {root}")
        waiting += below
    while waiting:
        name = waiting.pop()
        file = _file(name)
        if name in found or file is None or _in(name, NEUTRAL):
            continue
        module = _read(file, cache)
        found[name] = module.digest
        waiting += [imported for imported in module.imports if imported.partition(".")[0] in OURS]
    return found


def _in(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _file(name: str) -> Path | None:
    path = ROOT.joinpath(*name.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _files(name: str) -> Iterator[str]:
    """The module of that name, or all modules of the package."""
    folder = ROOT.joinpath(*name.split("."))
    if not folder.is_dir():
        yield from [name] if _file(name) else []
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def parse(source: bytes) -> Module:
    """The digest and the imports of a file. A file that Python cannot parse counts by its bytes."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Module(hashlib.sha256(source).hexdigest(), ())
    prose = b"__doc__" not in source  # a file that reads its docstrings depends on them
    text = ",".join(_plain(tree, prose))
    return Module(hashlib.sha256(text.encode()).hexdigest(), tuple(dict.fromkeys(_imports(tree))))


def _plain(node: Any, prose: bool) -> Iterator[str]:
    """The tree as text that is the same in every version of Python: empty fields are left out."""
    if isinstance(node, list):
        yield "["
        for item in node:
            if not _is_prose(item, prose):
                yield from _plain(item, prose)
        yield "]"
    elif isinstance(node, ast.AST):
        yield f"{type(node).__name__}("
        for name, value in ast.iter_fields(node):
            if name not in _SKIPPED and value is not None and value != []:
                yield name
                yield from _plain(value, prose)
        yield ")"
    else:
        yield repr(node)


def _is_prose(node: Any, prose: bool) -> bool:
    if _is_type_checking(node):
        return True
    if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
        return False
    return prose and isinstance(node.value.value, str)


def _is_type_checking(node: Any) -> bool:
    """Whether a statement is `if TYPE_CHECKING:` and nothing else."""
    if not isinstance(node, ast.If) or node.orelse:
        return False
    return "TYPE_CHECKING" in (getattr(node.test, "id", ""), getattr(node.test, "attr", ""))


def _imports(node: ast.AST) -> Iterator[str]:
    """Absolute names; `from a import b` gives a and a.b, whichever of them is a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not _is_type_checking(child):
            yield from _imports(child)


def _read(file: Path, cache: UserCache) -> Module:
    if file.suffix != ".py":
        about = file.stat()
        return Module(_of_bytes(file, about.st_size, about.st_mtime_ns, about.st_ino), ())
    source = file.read_bytes()
    key = f"py-{hashlib.sha256(source).hexdigest()}"
    match cache.get(key):
        case [str(known), [*imports]]:
            return Module(known, tuple(imports))
    module = parse(source)
    cache.put(key, module)
    return module


@functools.cache  # a command may name gigabytes of data, and a plan asks several times
def _of_bytes(file: Path, size: int, changed_ns: int, inode: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
