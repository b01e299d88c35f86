"""What counts as changed code: a digest of the definitions that a part of a computation reaches, ours and the user's.

A part (training, decoding, scoring) begins at methods of its task, or at the user's function. It reaches what these
mention, what that mentions, and so on: functions, classes, values. syntax.py says what a definition's text is. No name
or place of a file is in the digest: definitions are numbered in the order in which their text reaches them. So a file
may be moved or renamed, and a definition may move to another file. To be sure that nothing is left out:

 - A class is reached whole, with its bases and the types of its fields: which method an object runs is not known from
   the text. Only of a task, where a part begins, methods count one by one; `self.x` is looked up along its bases.
 - Whatever object the code meets was made by code that names its class and is reached thereby, or is an argument where
   the part begins: roots name the types of these. What they are called with (`emit`, `should_stop`) is not followed.
 - A dict, a list, a call in the value of a name count with that name; a module that is used as a value, or that a
   string names, counts whole.
 - Statements that define nothing count if the code imports their file. So do definitions with another decorator than
   Python's own, and values that a call makes which may have effects.
 - Code that looks definitions up by name at run time (`globals`, `importlib.import_module`, `__subclasses__`) counts
   with the whole of each file that it or the code around it imports.

The syntax of a file is cached for the user by the file's content, because reading all of it takes half a second. A
digest is "3-" and 16 hex digits. Those of other formats never equal a present one: their results count as made by
other code.
"""

import contextlib
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.store import syntax
from experiments.store.syntax import LOOSE, MAIN, WHOLE, Piece, Syntax
from experiments.store.user_cache import UserCache

FORMAT = 3
OURS = ("ablations", "model", "experiments", "reports")  # the packages of this program
ROOT = Path(__file__).resolve().parents[2]
_OF_PYTHON = re.compile(rb"#!.*\bpython[\d.]*\b")  # a script whose name does not end in .py


class Home(NamedTuple):
    """From where a file imports: a folder. `only`: of installed packages the one that counts; others have versions."""

    folder: Path
    only: str = ""


OURS_AT = Home(ROOT, "this program")


class Root(NamedTuple):
    """Where a part begins: at definitions of a file, "TASK" or "Translation.train", or in a script that is run."""

    file: Path
    names: tuple[str, ...]
    module: str  # by this name the file is imported
    home: Home


def root_at(
    file: Path, *names: str, module: str = "__main__", prefixes: Iterable[str] = (sys.prefix, sys.base_prefix)
) -> Root:
    """A root by its file, and the name of its module. prefixes: of the interpreter that imports it."""
    file = file.resolve()
    folder, top = file.parents[module.count(".") + (file.name == "__init__.py")], module.partition(".")[0]
    if folder == ROOT and top in OURS:
        return Root(file, names, module, OURS_AT)
    installed = any(folder.is_relative_to(Path(prefix).resolve()) for prefix in prefixes)
    return Root(file, names, module, Home(folder, top if installed else ""))


def root_of(kind: type, *members: str) -> Root:
    """A root that is a class, or members of one."""
    names = [f"{kind.__qualname__}.{member}" for member in members] or [kind.__qualname__]
    if "<locals>" in kind.__qualname__:  # made by a function: all of its file
        names = []
    return root_at(Path(str(sys.modules[kind.__module__].__file__)), *names, module=kind.__module__)


def code_digest(roots: Iterable[Root]) -> str:
    """The digest of the code of one part."""
    return code_digests({"": roots})[""]


def code_digests(parts: Mapping[str, Iterable[Root]]) -> dict[str, str]:
    """`code_digest` for each of several parts of a computation."""
    with _Code() as code:
        return {part: f"{FORMAT}-{code.digest(tuple(roots))[:16]}" for part, roots in parts.items()}


def files_of(roots: Iterable[Root]) -> tuple[Path, ...]:
    """The user's own files that the code imports, sorted."""
    theirs = tuple(root for root in roots if root.home != OURS_AT)
    with _Code() as code:
        return tuple(sorted(file.path for file in code.reach(theirs).files if file.home != OURS_AT))


def imports_of(file: Path) -> set[str]:
    """Dotted names that a file imports, anywhere in it; `from a import b` gives a.b."""
    return syntax.imports(syntax.read(file.read_bytes()))


class _File:
    """A file, the name of its module, and from where it imports. found: the modules that its home has, by name."""

    def __init__(self, path: Path, module: str, home: Home, found: "dict[str, _File | None]", read: Syntax) -> None:
        self.path, self.module, self.home, self.found = path, module, home, found
        self.syntax, self.pieces = read, read.pieces
        self.meant: dict[str, Target] = {}
        self.package = module if path.name == "__init__.py" else module.rpartition(".")[0]

    def absolute(self, module: str) -> str:
        """The name of a module without the dots of a relative import."""
        name = module.lstrip(".")
        above = self.package.split(".")[: max(0, self.package.count(".") + 2 - (len(module) - len(name)))]
        return ".".join([*above, name]).strip(".") if name != module else module


Node = tuple[_File, str]  # a piece of a file
Target = tuple[str, tuple[Node, ...]]  # what a mention means: a name, and the definitions of it, ours or the user's


class Reached(NamedTuple):
    """The pieces that a part reaches; `roots` are those where it begins; and all files that it imports."""

    roots: list[Node]
    nodes: set[Node]
    files: list[_File]


class _Code(contextlib.ExitStack):
    """Files, read once; what mentions mean in them; and what is reached from where."""

    def __init__(self) -> None:
        super().__init__()
        self._caches: dict[bool, UserCache] = {}  # of our files, of the user's
        self._files: dict[Path, _File] = {}
        self._found: dict[Home, dict[str, _File | None]] = {}
        self._busy: set[tuple[_File, tuple[str, ...]]] = set()
        self._after: dict[Node, list[Node]] = {}
        self._imports: dict[_File, tuple[list[_File], list[Node]]] = {}

    def digest(self, roots: tuple[Root, ...]) -> str:
        """Hash the reached pieces in an order that depends on their content alone."""
        reached = self.reach(roots)
        numbers: dict[Node, int] = {}
        self._number(reached.roots, numbers)
        rest = [node for node in reached.nodes if node not in numbers]  # effects of imports
        self._number(sorted(rest, key=self._content), numbers)
        whole = hashlib.sha256()
        for node in numbers:
            words = [node[0].pieces[node[1]].text, *(str(numbers[part]) for part in self._parts(node))]
            for text, targets in self._mentioned(node):
                words.append(f"{text}{[numbers[target] for target in targets]}")
            whole.update(" ".join([*words, "\n"]).encode())
        return whole.hexdigest()

    def _number(self, begins: Iterable[Node], numbers: dict[Node, int]) -> None:
        """Number the nodes in the order in which text leads to them."""
        for begin in begins:
            waiting = [begin]
            while waiting:
                node = waiting.pop()
                if node not in numbers:
                    numbers[node] = len(numbers)
                    waiting += reversed(self._next(node))

    def _content(self, node: Node) -> tuple[str, list[str], str, str]:
        """Sorts nodes; their places matter only between two that say the same."""
        return node[0].pieces[node[1]].text, [text for text, _ in self._mentioned(node)], str(node[0].path), node[1]

    def reach(self, roots: tuple[Root, ...]) -> Reached:
        """Follow mentions from the roots."""
        begins = [node for root in roots for node in self._begin(root)]
        waiting, nodes = [*begins, *(node for root in roots for node in self._unmentioned(root))], set[Node]()
        files: dict[_File, None] = {}
        opened: set[Home] = set()
        while waiting:
            node = waiting.pop()
            if node in nodes:
                continue
            nodes.add(node)
            file, key = node
            piece = file.pieces[key]
            for each in (file, *(m for mention in piece.imports for m in self._modules(file, mention))):
                if each not in files:
                    waiting += self._import(each, files)
            waiting += self._next(node)
            if piece.open:
                opened.add(file.home)
            if not waiting and opened:
                waiting += [(file, WHOLE) for file in files if file.home in opened and (file, WHOLE) not in nodes]
        return Reached(begins, nodes, list(files))

    def _mentioned(self, node: Node) -> list[Target]:
        return [self._target(node[0], mention) for mention in node[0].pieces[node[1]].mentions]

    def _next(self, node: Node) -> list[Node]:
        """The pieces to which the text of one leads, in its order."""
        if node not in self._after:
            file, piece = node[0], node[0].pieces[node[1]]
            mentioned = (self._target(file, mention)[1] for mention in (*piece.mentions, *piece.types))
            self._after[node] = [*self._parts(node), *(each for targets in mentioned for each in targets)]
        return self._after[node]

    def _parts(self, node: Node) -> list[Node]:
        return [(node[0], part) for part in node[0].pieces[node[1]].parts]

    # --- where a part begins

    def _begin(self, root: Root) -> Iterator[Node]:
        file = self._read(root.file, root.module, root.home)
        if not root.names:
            yield from ((file, key) for key in (LOOSE, MAIN) if key in file.pieces)
        for name in root.names:
            first, _, member = name.partition(".")
            nodes = self._in_file(file, [first])[1]
            yield from self._members(nodes, member) if member else nodes

    def _unmentioned(self, root: Root) -> Iterator[Node]:
        """Of a script also what it does not mention: its definitions, and those that it imports by name."""
        file = self._read(root.file, root.module, root.home)
        for targets in file.syntax.names.values() if not root.names else ():
            for target in targets:
                if not target.endswith(":"):
                    yield from self._target(file, target)[1] if ":" in target else [(file, target)]
        if file.pieces.keys() == {WHOLE}:  # no Python
            yield file, WHOLE

    def _members(self, nodes: Sequence[Node], member: str) -> Iterator[Node]:
        """A member of a class, and those that it names as attributes of self: in the class and in its bases."""
        classes = list(dict.fromkeys(base for node in nodes for base in self._with_bases(node)))
        if not any(f"{key}.{member}" in file.pieces for file, key in classes):  # made at run time
            yield from nodes
        yield from ((file, f"{key}@") for file, key in classes)
        waiting, named = ["__init__", member], set[str]()
        while waiting:
            name = waiting.pop()
            if name in named:
                continue
            named.add(name)
            for file, key in classes if name != "*" else ():
                if (piece := file.pieces.get(f"{key}.{name}")) is not None:
                    yield file, f"{key}.{name}"
                    waiting += reversed(piece.own)
        if "*" in named:
            yield from classes

    def _with_bases(self, node: Node) -> Iterator[Node]:
        file, key = node
        if key in file.syntax.bases:
            yield node
            for mention in file.syntax.bases[key]:
                for base in self._target(file, mention)[1]:
                    yield from self._with_bases(base)

    # --- files

    def _read(self, path: Path, module: str, home: Home) -> _File:
        if path not in self._files:
            source, ours = path.read_bytes(), home == OURS_AT
            python = path.suffix == ".py" or _OF_PYTHON.match(source) is not None
            key = f"{'py' if python else 'raw'}-{hashlib.sha256(source).hexdigest()}"
            if ours not in self._caches:
                name = f"syntax-{FORMAT}" if ours else f"syntax-{FORMAT}-own"
                self._caches[ours] = self.enter_context(UserCache(name, largest=1_000))
            cache = self._caches[ours]
            try:
                names, pieces, imports, bases = json.loads(cache.get(key))
                read = Syntax(names, {name: Piece(*each) for name, each in pieces.items()}, imports, bases)
            except (ValueError, TypeError, AttributeError):  # not known, or damaged
                read = syntax.read(source, python)
                short = {name: _short(piece) for name, piece in read.pieces.items()}
                cache.put(key, json.dumps([read.names, short, read.imports, read.bases], separators=(",", ":")))
            self._files[path] = _File(path, module, home, self._found.setdefault(home, {}), read)
        return self._files[path]

    def _find(self, name: str, asks: _File) -> _File | None:
        """A module by its absolute name, as a file imports it; None if it is not ours or the user's."""
        if name not in asks.found:
            home, top = asks.home, name.partition(".")[0]
            if top in OURS and (home == OURS_AT or not _beside(home.folder, top)):
                home = OURS_AT
            place = home.folder.joinpath(*name.split("."))
            known = top in OURS if home == OURS_AT else home.only in ("", top)
            paths = (place / "__init__.py", place.with_name(f"{place.name}.py")) if known else ()
            path = next((path for path in paths if path.is_file()), None)
            asks.found[name] = self._read(path.resolve(), name, home) if path else None
        return asks.found[name]

    def _modules(self, file: _File, mention: str) -> Iterator[_File]:
        """The files that an import runs: packages on the way, the module, and a module among the imported names."""
        module, _, name = mention.partition(":")
        parts = [*file.absolute(module).split("."), *([name] if name else [])]
        for length in range(1, len(parts) + 1):
            found = self._find(".".join(parts[:length]), file)
            if found is not None:
                yield found

    def _import(self, file: _File, files: dict[_File, None]) -> list[Node]:
        """Add a file and what it imports to the files; returns what runs then."""
        waiting, nodes = [file], list[Node]()
        while waiting:
            each = waiting.pop()
            if each not in files:
                files[each] = None
                if each not in self._imports:
                    modules = [m for mention in each.syntax.imports for m in self._modules(each, mention)]
                    modules += self._modules(each, f"{each.package}:") if each.package else []
                    pieces = each.pieces.items()
                    acts = [k for k, p in pieces if k == LOOSE or any(self._acts(each, call) for call in p.calls)]
                    self._imports[each] = list(dict.fromkeys(modules)), [(each, key) for key in acts]
                waiting += self._imports[each][0]
                nodes += self._imports[each][1]
        return nodes

    def _acts(self, file: _File, call: str) -> bool:
        """Whether a call may have effects when the file is imported: it is neither Python's own nor makes an object."""
        text, targets = self._target(file, call.lstrip("@"))
        if not targets:
            own = file.home == OURS_AT or call.startswith("@@")
            return not own and text.partition(".")[0] not in sys.stdlib_module_names
        return call.startswith("@") or "." in text or any(key not in each.syntax.bases for each, key in targets)

    # --- what a mention means

    def _target(self, file: _File, mention: str) -> Target:
        if mention not in file.meant:
            file.meant[mention] = self._look_up(file, mention)
        return file.meant[mention]

    def _look_up(self, file: _File, mention: str) -> Target:
        module, _, chain = mention.partition(":")
        if mention.startswith("="):
            return self._named(file, mention)
        names = chain.split(".") if chain else []
        if not module:
            return self._in_file(file, names)
        module = file.absolute(module)
        for length in range(len(names) + 1):  # names may be of modules in a package that has no file
            found = self._find(".".join([module, *names[:length]]), file)
            if found is not None:
                return self._in_file(found, names[length:])
        return ".".join([module, *names]), ()

    def _named(self, file: _File, mention: str) -> Target:
        """What a string names, if it names a module or a definition in one."""
        parts = mention[1:].replace(":", ".").split(".")
        for length in range(len(parts), 0, -1):
            found = self._find(".".join(parts[:length]), file)
            if found is not None:
                known = length == len(parts) or parts[length] in found.syntax.names
                return self._in_file(found, parts[length:]) if known else (mention, ())
        return mention, ()

    def _in_file(self, file: _File, names: list[str]) -> Target:
        """What attributes of a module mean; without any it is the whole module, with those of a package."""
        if not names or names == ["*"]:
            every = [file, *(self._below(file) if not names and file.path.name == "__init__.py" else ())]
            return "", tuple(sorted(((each, WHOLE) for each in every), key=lambda node: node[0].pieces[WHOLE].text))
        asked = (file, tuple(names))
        if asked in self._busy:  # two files import the name from each other
            return "", ()
        self._busy.add(asked)
        try:
            return self._attribute(file, names)
        finally:
            self._busy.discard(asked)

    def _below(self, package: _File) -> Iterator[_File]:
        for path in sorted(package.path.parent.rglob("*.py")):
            parts = path.relative_to(package.path.parent).with_suffix("").parts
            if parts != ("__init__",):
                name = ".".join([package.module, *(parts[:-1] if parts[-1] == "__init__" else parts)])
                yield self._read(path, name, package.home)

    def _attribute(self, file: _File, names: list[str]) -> Target:
        first, *rest = names
        found: list[Target] = []
        for binding in file.syntax.names.get(first, ()):
            if ":" in binding:
                found.append(self._look_up(file, ".".join([binding, *rest]).replace(":.", ":")))
            else:
                found.append((".".join(names), ((file, binding),)))  # a statement may define several names
        if file.path.name == "__init__.py":
            module = self._find(f"{file.module}.{first}", file)
            found += [self._in_file(module, rest)] if module is not None else []
        if not found:
            for star in file.syntax.names.get("*", ()):
                text, nodes = self._look_up(file, star.replace(":*", f":{'.'.join(names)}"))
                found += [(text, nodes)] if nodes else []
        if not found:  # made at run time, or not Python
            return ".".join(names), () if first.startswith("__") else self._in_file(file, [])[1]
        return "|".join(text for text, _ in found), tuple(node for _, nodes in found for node in nodes)


def _short(piece: Piece) -> list[Any]:
    """The fields without the empty ones at the end."""
    fields = list(piece)
    while not fields[-1]:
        fields.pop()
    return fields


def _beside(folder: Path, top: str) -> bool:
    """Whether a name of this program's packages is the user's own module or package in the folder."""
    if (folder / "experiments" / "tasks" / "base.py").is_file():  # a checkout of this program
        return False
    return (folder / f"{top}.py").is_file() or (folder / top / "__init__.py").is_file()
