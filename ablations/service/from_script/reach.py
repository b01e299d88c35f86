"""Find the code that a run of a script reaches, as far as the syntax of the script shows this.

The body of each imported module is reached, except its code under `if __name__ == "__main__"`. A function is reached if
reached code mentions its name, also through an import, or if a decorator such as `@app.command()` registers it. A class
is reached with its methods. Methods that add options to a parser are an exception. They are reached only if reached
code mentions them.
"""

import ast
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ablations.service.from_script.option import keywords, name_of

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef
# Decorators that register a function where it is defined, so that other code need not mention it.
_REGISTERS = ("command", "callback", "group", "config", "main", "automain", "wrap")
_CONDITIONS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.IfExp, ast.Match)


@dataclass(frozen=True)
class Node:
    """A node of reached code.

    function: the function that contains the node; None at the top level of the file. around: the conditions and loops
    around the node in that function or file.
    """

    file: Path
    function: Function | None
    around: tuple[ast.AST, ...]
    node: ast.AST

    @property
    def conditional(self) -> bool:
        """Whether the node may be executed several times, or not at all."""
        return bool(self.around)


class Code:
    """The files of a script, and the nodes that a run of the script reaches.

    The nodes of a body are in the order of the source. The body of a function follows the code that mentions it.
    """

    def __init__(self, script: Path, trees: Mapping[Path, ast.Module]) -> None:
        self.script, self._trees = script, trees
        self.nodes: list[Node] = []
        self.imports = set[str]()  # names that the reached files import
        self._names: dict[Path, _Names] = {}
        self._resolved: dict[tuple[str, Path], list[tuple[Path, Definition]]] = {}
        self._bound: dict[tuple[Path, Function | None, str], list[Node]] = {}  # nodes that bind a name
        self._set: dict[str, list[Node]] = {}  # assignments to an attribute
        self._seen = set[int]()
        self._bodies = deque[tuple[list[ast.stmt], Path, Function | None]]()  # reached bodies that are not yet read
        self._attributes = set[str]()  # mentioned attributes: parse for x.parse
        self._adders: dict[str, list[tuple[Path, Function]]] = {}  # name → the methods of this name
        if script in trees:
            self._module(script)
        while self._bodies:
            self._run(*self._bodies.popleft())

    def functions(self) -> Iterator[tuple[Node, Function]]:
        """Yield the reached definitions of functions."""
        yield from ((node, node.node) for node in self.nodes if isinstance(node.node, Function))

    def calls(self) -> Iterator[tuple[Node, ast.Call]]:
        """Yield the reached calls."""
        yield from ((node, node.node) for node in self.nodes if isinstance(node.node, ast.Call))

    def definitions(self, name: str, file: Path) -> list[tuple[Path, Definition]]:
        """Return the definitions of a name that a file defines or imports from another file of the script."""
        if (name, file) not in self._resolved:
            self._resolved[name, file] = self._resolve(name, file, 0)
        return self._resolved[name, file]

    def binding(self, name: str, file: Path, function: Function | None) -> list[Node]:
        """Return the nodes that bind a name in a function, or at the top level of a file if `function` is None."""
        return self._bound.get((file, function, name), [])

    def setting(self, attribute: str) -> list[Node]:
        """Return the assignments to an attribute of any object."""
        return self._set.get(attribute, [])

    def _resolve(self, name: str, file: Path, depth: int) -> list[tuple[Path, Definition]]:
        names = self._names_of(file)
        if defined := names.definitions.get(name):
            return [(file, each) for each in defined]
        every = [*names.imported.get(name, ()), *names.imported.get("*", ())] if depth < 5 else ()
        for module, original in every:
            there = self._file(module, file) if original else None
            if there is not None and (found := self._resolve(name if original == "*" else original, there, depth + 1)):
                return found
        return []

    def _file(self, module: str, importer: Path) -> Path | None:
        """Return the file of a module among the files of the script; None if it is not among them."""
        level = len(module) - len(module.lstrip("."))
        parts = [part for part in module.lstrip(".").split(".") if part]
        homes = [importer.parents[level - 1]] if level else [importer.parent, *importer.parents, self.script.parent]
        for home in homes:
            base = home.joinpath(*parts)
            for file in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
                if file in self._trees:
                    return file
        return None

    def _names_of(self, file: Path) -> "_Names":
        if file not in self._names:
            self._names[file] = names = _names(self._trees[file])
            self.imports |= names.modules
        return self._names[file]

    def _module(self, file: Path) -> None:
        if id(self._trees[file]) not in self._seen:
            self._seen.add(id(self._trees[file]))
            self._names_of(file)
            self._bodies.append((self._trees[file].body, file, None))

    def _run(self, body: list[ast.stmt], file: Path, function: Function | None) -> None:
        for statement in body:
            for node in self._walk(statement, file, function):
                self.nodes.append(node)
                self._note(node)
                self._follow(node)

    def _walk(self, statement: ast.AST, file: Path, function: Function | None) -> Iterator[Node]:
        """Yield the nodes of a statement.

        Bodies of functions, and of `if __name__ == "__main__"` in imported modules, are left out.
        """
        waiting: list[tuple[ast.AST, tuple[ast.AST, ...]]] = [(statement, ())]
        while waiting:
            node, around = waiting.pop()
            if isinstance(node, ast.If) and _is_main(node.test):
                inside: list[ast.AST] = [*(node.body if file == self.script else node.orelse)]
            else:
                yield Node(file, function, around, node)
                inside = _inside(node)
                if isinstance(node, _CONDITIONS):
                    around = (*around, node)
            waiting += [(child, around) for child in reversed(inside)]

    def _note(self, found: Node) -> None:
        """Record the names and attributes that a node binds."""
        node = found.node
        targets: list[ast.expr | None] = []
        if isinstance(node, ast.Assign):
            targets = list(node.targets)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr):
            targets = [node.target]
        elif isinstance(node, ast.With):
            targets = [item.optional_vars for item in node.items]
        for target in targets:
            if isinstance(target, ast.Name):
                self._bound.setdefault((found.file, found.function, target.id), []).append(found)
            elif isinstance(target, ast.Attribute):
                self._set.setdefault(target.attr, []).append(found)

    def _follow(self, found: Node) -> None:
        """Add the modules, functions and classes that a node mentions to the reached code."""
        node, file = found.node, found.file
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module, original, _ in _imported(node):
                for name in (module, _joined(module, original)):
                    if there := self._file(name, file):
                        self._module(there)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            for place, each in self.definitions(node.id, file):
                self._take(each, place)
        elif isinstance(node, ast.Attribute):
            of = name_of(node.value)
            for module, original in self._names_of(file).imported.get(of, ()):
                there = self._file(_joined(module, original), file)
                if there is not None:
                    for each in self._names_of(there).definitions.get(node.attr, ()):
                        self._take(each, there)
            self._attributes.add(node.attr)
            for place, method in self._adders.get(node.attr, ()):
                self._take(method, place)
        elif isinstance(node, Function) and any(_registers(each) for each in node.decorator_list):
            self._take(node, file)

    def _take(self, definition: Definition, file: Path) -> None:
        if id(definition) in self._seen:
            return
        self._seen.add(id(definition))
        if isinstance(definition, ast.ClassDef):
            for base in definition.bases:
                for place, each in self.definitions(name_of(base), file):
                    self._take(each, place)
            for method in (each for each in definition.body if isinstance(each, Function)):
                self._adders.setdefault(method.name, []).append((file, method))
                adds = any(isinstance(n, ast.Attribute) and n.attr == "add_argument" for n in ast.walk(method))
                if not adds or method.name in self._attributes:
                    self._take(method, file)
        else:
            self._bodies.append((definition.body, file, definition))


def _is_main(test: ast.expr) -> bool:
    return "__name__" in {node.id for node in ast.walk(test) if isinstance(node, ast.Name)}


def _inside(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes that run together with a node.

    The definition of a function runs only its decorators and defaults. The methods of a class are left out.
    """
    if isinstance(node, ast.ClassDef):
        return [*node.decorator_list, *node.bases, *(each for each in node.body if not isinstance(each, Function))]
    if isinstance(node, Function):
        defaults = [default for default in (*node.args.defaults, *node.args.kw_defaults) if default]
        return [*node.decorator_list, *defaults]
    return list(ast.iter_child_nodes(node))


def _registers(decorator: ast.expr) -> bool:
    """Return whether a decorator, such as `@app.command()`, registers the function with an object of the script."""
    target = decorator.func if isinstance(decorator, ast.Call) else decorator
    name = name_of(target)
    of = name_of(target.value) if isinstance(target, ast.Attribute) else ""
    return name in _REGISTERS and bool(of) and of not in ("click", "typer", "hydra", "pyrallis", "draccus")


@dataclass(frozen=True)
class _Names:
    """The names that a file defines or imports.

    imported: local name → (module, name in the module). The local name "*" stands for an import of all names.
    """

    definitions: dict[str, list[Definition]]  # functions and classes, without methods
    imported: dict[str, list[tuple[str, str]]]
    modules: set[str]


def _names(tree: ast.Module) -> _Names:
    found = _Names({}, {}, set())
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.expr):
            continue  # no expression defines or imports anything
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Definition) and not (isinstance(node, ast.ClassDef) and isinstance(child, Function)):
                found.definitions.setdefault(child.name, []).append(child)
            elif isinstance(child, ast.Import | ast.ImportFrom):
                found.modules.update(_imports(child))
                for module, original, local in _imported(child):
                    found.imported.setdefault(local, []).append((module, original))
            waiting.append(child)
    return found


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str, str]]:
    """Yield (module, name, local name) of an import. `name` is "" if the import binds the module itself."""
    if isinstance(node, ast.ImportFrom):
        module = "." * node.level + (node.module or "")
        yield from ((module, each.name, each.asname or each.name) for each in node.names)
    else:
        yield from ((each.name, "", each.asname or each.name.partition(".")[0]) for each in node.names)


def _joined(module: str, name: str) -> str:
    """Return the name of a module in a package: a.b for b in a, and .b for `from . import b`."""
    if not name:
        return module
    return f"{module}{name}" if not module.strip(".") else f"{module}.{name}"


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        yield from (part for one in node.names for part in (one.name, one.name.partition(".")[0]))
        yield (getattr(node, "module", "") or "").partition(".")[0]


def parameter_of(function: Function, call: ast.Call, name: str) -> ast.expr | None:
    """Return the argument that a call passes for a parameter of a function; None if it passes none."""
    given = keywords(call).get(name)
    if given is not None:
        return given
    names = [argument.arg for argument in function.args.args]
    if name not in names:
        return None
    place = names.index(name)
    if names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute):
        place -= 1
    return call.args[place] if 0 <= place < len(call.args) else None
