"""What a file of Python defines, and what each definition mentions. Reads its syntax tree alone and runs nothing.

A piece is a definition at the top of the file, a member of such a class, or all statements that define nothing. Its
text leaves out comments, docstrings, annotations that call nothing, blocks under `if TYPE_CHECKING`, and imports. In
place of a name that is not local there is a mark, and the name is in `mentions`, so that the text does not depend on
the file in which the other definition is, or on the name under which it was imported.

A mention is "MODULE:NAME.ATTRIBUTE": `np.load` is ":np.load" where np is a name of the file, and "numpy:load" where the
function itself imports numpy as np. MODULE begins with dots for a relative import. A string with the form of a module's
name is "=model.stack". The text is the same in every version of Python from 3.11.
"""

import ast
import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

WHOLE, MAIN, LOOSE = "", "if __name__", "statements"  # keys of pieces that are no definitions
_SELF = "self"
_SKIPPED = frozenset({"type_comment", "type_params", "ctx", "simple", "kind"})
_ANNOTATIONS = frozenset({"annotation", "returns"})
_MODULE_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*")
# With these, code reaches definitions that it does not mention.
_BY_NAME = frozenset({"globals", "eval", "exec", "__import__"})
_BY_CLASS = frozenset({"__subclasses__", "__init_subclass__"})
_BY_MODULE = re.compile(
    r"(importlib[.:](import_module|reload|machinery|util[.:](spec_|module_))|sys:modules|runpy|pkgutil|__main__)"
)

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = dict[str, list[str]]  # a name that it binds → the mentions that it imports under it; of a local name []


class Piece(NamedTuple):
    """One piece. Its text is kept as a digest."""

    text: str
    mentions: tuple[str, ...] = ()  # in the order of the text
    types: tuple[str, ...] = ()  # mentioned, but not in the text: the types of a class's fields
    parts: tuple[str, ...] = ()  # keys of the members of a class
    own: tuple[str, ...] = ()  # of a method: the attributes of self that it names; "*": it passes self on
    imports: tuple[str, ...] = ()  # mentions of the modules that it imports when it runs
    calls: tuple[str, ...] = ()  # what it calls when the file is imported; "@…" for a decorator, "@@…" for a member's
    open: bool = False  # whether it looks definitions up at run time


class Syntax(NamedTuple):
    """A file: what its names stand for (keys of pieces, and mentions if imported), its pieces, what it imports."""

    names: dict[str, list[str]]
    pieces: dict[str, Piece]
    imports: list[str]  # mentions of the modules that the file imports, at its top
    bases: dict[str, list[str]]  # of its classes


def read(source: bytes, python: bool = True) -> Syntax:
    """The syntax of a file. One that Python cannot parse, or that is not Python, is one piece: its bytes."""
    try:
        if python:
            return _File(ast.parse(source), prose=b"__doc__" not in source).syntax()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return Syntax({}, {WHOLE: Piece(hashlib.sha256(source).hexdigest()[:32])}, [], {})


def imports(read: Syntax) -> set[str]:
    """Dotted names that a file imports, anywhere in it; `from a import b` gives a.b, and relative imports nothing."""
    every = (*read.imports, *(mention for piece in read.pieces.values() for mention in piece.imports))
    return {mention.replace(":", ".").strip(".") for mention in every if not mention.startswith(".")}


class _File:
    """Sorts the statements of a file into pieces. prose: whether nothing reads docstrings."""

    def __init__(self, tree: ast.Module, prose: bool) -> None:
        self.tree, self.prose = tree, prose
        self.names: dict[str, list[str]] = {}
        self.pieces: dict[str, Piece] = {}
        self.bases: dict[str, list[str]] = {}

    def syntax(self) -> Syntax:
        statements: dict[str, list[ast.stmt]] = {}
        imports: list[str] = []
        for node in self.tree.body:
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += _run_by(node)
                self._bind(_imported(node))
            elif _is_text(node) and node is self.tree.body[0]:
                self._bind([("__doc__", "__doc__")])
                statements["__doc__"] = [node]
            elif not _is_text(node) and not _is_type_checking(node):
                names = _defined(node)
                key = f"{names[0]}#{len(statements)}" if names else MAIN if _is_main(node) else LOOSE
                for name, targets in _bound([node]).items():
                    self._bind((name, target) for target in (*targets, key))
                statements.setdefault(key, []).append(node)
        for key, nodes in statements.items():
            if isinstance(nodes[0], ast.ClassDef) and key not in (MAIN, LOOSE):
                self._class(key, nodes[0])
            else:
                writer = _Writer(self)
                writer.put(nodes, prose=False)
                self.pieces[key] = writer.piece(calls=[call for node in nodes for call in writer.calls_of(node)])
        keys = sorted(statements.keys() - {"__doc__"}, key=lambda key: (key.partition("#")[0], self.pieces[key].text))
        imported = sorted((name, target) for name, found in self.names.items() for target in found if ":" in target)
        text = _digest(self.pieces[key].text for key in keys)
        self.pieces[WHOLE] = Piece(text, tuple(target for _, target in imported), parts=tuple(keys))
        return Syntax(self.names, self.pieces, imports, self.bases)

    def _bind(self, bound: Iterable[tuple[str, str]]) -> None:
        for name, target in bound:
            if target not in self.names.setdefault(name, []):
                self.names[name].append(target)

    def _class(self, key: str, node: ast.ClassDef) -> None:
        """The head with its bases, the decorators, keywords and statements, and each member, in pieces of their own.

        Fields keep their order, which dataclasses use; methods are sorted.
        """
        scope, members, loose = _bound(node.body), dict[str, list[ast.stmt]](), list[ast.stmt]()
        for each in node.body:
            if len(names := _defined(each)) == 1:
                members.setdefault(names[0], []).append(each)
            else:
                loose.append(each)
        methods = sorted(name for name, nodes in members.items() if isinstance(nodes[-1], Function))
        parts = {f"{key}@": _Writer(self)}
        parts[f"{key}@"].put([*node.decorator_list, *node.keywords])
        parts[f"{key}@"].within(scope, loose, of_class=True)
        for name in (*(name for name in members if name not in methods), *methods):
            parts[f"{key}.{name}"] = _Writer(self, scope)
            parts[f"{key}.{name}"].put(members[name])
        self.pieces.update({part: writer.piece() for part, writer in parts.items()})
        head = _Writer(self)
        head.put([node.name, *node.bases])
        head.open |= any(isinstance(base, ast.Name) and base.id == "type" for base in node.bases)  # a metaclass
        self.bases[key] = list(head.mentions)
        self.pieces[key] = head.piece(parts, head.calls_of(node))


class _Writer:
    """Writes statements as text and collects what they mention. scope: that of the class in which they are."""

    def __init__(self, file: _File, scope: Scope | None = None) -> None:
        self.file = file
        self.scopes: list[tuple[Scope, bool]] = [] if scope is None else [(scope, True)]  # and whether of a class
        self.text: list[str] = []
        self.mentions: list[str] = []
        self.types: dict[str, None] = {}
        self.own: dict[str, None] = {}
        self.imports: dict[str, None] = {}
        self.open = False

    def piece(self, parts: Iterable[str] = (), calls: Iterable[str] = ()) -> Piece:
        lists = (self.mentions, self.types, parts, self.own, self.imports, dict.fromkeys(calls))
        mentions, types, keys, own, imports, called = (tuple(each) for each in lists)
        return Piece(_digest(self.text), mentions, types, keys, own, imports, called, self.open)

    def put(self, node: Any, prose: bool = True) -> None:
        """Write a node, a list or a value. prose: leave docstrings out, if nothing reads them."""
        if isinstance(node, list):
            self.text.append("[")
            for each in node:
                if not (_is_type_checking(each) or (prose and self.file.prose and _is_text(each))):
                    self.put(each)
            self.text.append("]")
        elif isinstance(node, ast.AST):
            special = getattr(self, f"_put_{type(node).__name__.lower()}", None)
            if special is None or not special(node):
                self._put_fields(node)
        else:
            self.text.append(repr(node))

    def within(self, scope: Scope, body: Any, of_class: bool = False) -> None:
        """Write what is in a scope of its own."""
        self.scopes.append((scope, of_class))
        self.put(body)
        self.scopes.pop()

    def _put_fields(self, node: ast.AST, without: str = "") -> None:
        self.text.append(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if value is None or value == [] or name in _SKIPPED or name == without:
                continue
            if name not in _ANNOTATIONS or any(isinstance(each, ast.Call) for each in ast.walk(value)):
                self.text.append(name)
                self.put(value)
        self.text.append(")")

    def _put_import(self, node: ast.Import | ast.ImportFrom) -> bool:
        self.imports.update(dict.fromkeys(_run_by(node)))
        return True

    _put_importfrom = _put_import

    def _put_name(self, node: ast.Name) -> bool:
        self._put_chain(node, [])
        return True

    def _put_attribute(self, node: ast.Attribute) -> bool:
        names, root = [node.attr], node.value
        while isinstance(root, ast.Attribute):
            names.insert(0, root.attr)
            root = root.value
        self.open |= not _BY_CLASS.isdisjoint(names)
        if isinstance(root, ast.Name):
            self._put_chain(root, names)
            return True
        if isinstance(root, ast.Call) and isinstance(root.func, ast.Name) and root.func.id == "super":
            self.own[names[0]] = None
        self.text.append(f".{'.'.join(names)}")
        self.put(root)
        return True

    def _put_chain(self, root: ast.Name, names: list[str]) -> None:
        """Write a name with its attributes: marks for what it stands for, or the name itself if it is local."""
        targets = self._targets(root.id)
        if targets == [_SELF]:
            self.own[names[0] if names else "*"] = None
        if not targets or targets == [_SELF]:
            self.text.append(".".join(["name", root.id, *names]))
            return
        for target in targets:
            mention = ".".join([target, *names]).replace(":.", ":")
            meant = [mention]
            if target.startswith(":"):
                meant = [".".join([t, *names]).replace(":.", ":") for t in self.file.names.get(root.id, ())]
            self.open |= any(_BY_MODULE.match(each) for each in meant)
            self.text.append("@")
            self.mentions.append(mention)

    def _targets(self, name: str) -> list[str]:
        """What a name stands for here; [] for a local one and for Python's own."""
        for depth, (scope, of_class) in enumerate(reversed(self.scopes)):
            if name in scope and not (of_class and depth):
                if of_class and not scope[name] and name in self.file.names:
                    self.types[f":{name}"] = None  # it is meant until the class has bound its own
                return [] if scope[name] == [f":{name}"] and name not in self.file.names else scope[name]
        self.open |= name in _BY_NAME
        return [f":{name}"] if name in self.file.names or "*" in self.file.names else []

    def _put_constant(self, node: ast.Constant) -> bool:
        if not isinstance(node.value, str) or not _MODULE_NAME.fullmatch(node.value):
            return False
        self.text.append("@")
        self.mentions.append(f"={node.value}")
        return True

    def _put_joinedstr(self, node: ast.JoinedStr) -> bool:
        """Without empty texts, which Python 3.12 adds, and with adjacent ones as one."""
        constant = ""
        for value in [*node.values, None]:
            if isinstance(value, ast.Constant):
                constant += str(value.value)
                continue
            self.text.append(repr(constant))
            constant = ""
            if value is not None:
                self.put(value)
        return True

    def _put_annassign(self, node: ast.AnnAssign) -> bool:
        if self.scopes and self.scopes[-1][1]:
            aside = _Writer(self.file)
            aside.put(node.annotation)
            for each in ast.walk(node.annotation):
                if isinstance(each, ast.Constant) and isinstance(each.value, str):
                    with contextlib.suppress(SyntaxError, ValueError):
                        aside.put(ast.parse(each.value, mode="eval").body)
            self.types.update(dict.fromkeys((*aside.mentions, *aside.types)))
        return False

    def _put_functiondef(self, node: Function) -> bool:
        scope = _bound(node.body, node.args)
        static = any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list)
        if len(self.scopes) == 1 and self.scopes[0][1] and not static:
            scope.update({each.arg: [_SELF] for each in [*node.args.posonlyargs, *node.args.args][:1]})
        self.open |= node.name in _BY_CLASS
        self._put_fields(node, without="body")  # defaults and decorators belong to the scope around it
        self.within(scope, node.body)
        return True

    _put_asyncfunctiondef = _put_functiondef

    def _put_lambda(self, node: ast.Lambda) -> bool:
        self._put_fields(node, without="body")
        self.within(_bound([node.body], node.args), node.body)
        return True

    def _put_classdef(self, node: ast.ClassDef) -> bool:
        self._put_fields(node, without="body")
        ordered = sorted(node.body, key=lambda each: each.name if isinstance(each, Function) else "")
        self.within(_bound(node.body), ordered, of_class=True)
        return True

    def _put_listcomp(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> bool:
        first, *rest = node.generators
        self.text.append(type(node).__name__)
        self.put(first.iter)  # belongs to the scope around it
        made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        inside = [first.target, first.ifs, first.is_async, *rest, *made]
        self.within(_bound(each.target for each in node.generators), inside)
        return True

    _put_setcomp = _put_dictcomp = _put_generatorexp = _put_listcomp

    def calls_of(self, node: ast.AST) -> Iterator[str]:
        """What a definition at the top of a file calls when the file is imported."""
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield from (f"@{each}" for each in self._callees(node.decorator_list, called=True))
            case ast.ClassDef():
                yield from (f"@{each}" for each in self._callees(node.decorator_list, called=True))
                for each in node.body:
                    yield from (call.replace("@", "@@") for call in self.calls_of(each))
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value) | ast.AugAssign(value=value):
                yield from self._callees([value])

    def _callees(self, nodes: Iterable[ast.AST], called: bool = False) -> Iterator[str]:
        for node in nodes:
            if called or isinstance(node, ast.Call):
                writer = _Writer(self.file)
                writer.put(node.func if isinstance(node, ast.Call) else node)
                yield from writer.mentions[:1]
            if not isinstance(node, ast.Lambda):
                yield from self._callees(ast.iter_child_nodes(node))


def _digest(text: Iterable[str]) -> str:
    return hashlib.sha256(",".join(text).encode()).hexdigest()[:32]


def _bound(nodes: Iterable[ast.AST], arguments: ast.arguments | None = None) -> Scope:
    """The names that statements bind, without those of the scopes inside them."""
    found: Scope = {}
    elsewhere: Scope = {}
    if arguments is not None:
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
        found = {each.arg: [] for each in every if each}

    def visit(node: ast.AST, inner: bool = False) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.setdefault(name, [])
                return
            case ast.Lambda():
                return
            case ast.Import() | ast.ImportFrom():
                for name, target in _imported(node):
                    found.setdefault(name, []).append(target)
            case ast.Global(names=names):
                elsewhere.update({name: [f":{name}"] for name in names})
            case ast.Nonlocal(names=names):
                elsewhere.update({name: [] for name in names})
            case ast.Name(id=name, ctx=ast.Store() | ast.Del()) if not inner:
                found.setdefault(name, [])
            case ast.NamedExpr(target=ast.Name(id=name)) | ast.MatchMapping(rest=str(name)):
                found.setdefault(name, [])
            case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                found.setdefault(name, [])
        inner = inner or isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        for child in ast.iter_child_nodes(node):
            visit(child, inner)

    for node in nodes:
        visit(node)
    own = {name: targets for name, targets in found.items() if name not in elsewhere}
    return own | {name: targets for name, targets in elsewhere.items() if targets}


def _defined(node: ast.stmt) -> list[str]:
    """The names that a statement defines, if it does nothing else."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.AnnAssign(target=ast.Name(id=name)) | ast.AugAssign(target=ast.Name(id=name)):
            return [name]
        case ast.Assign(targets=targets):
            inside = [each for target in targets for each in ast.walk(target)]
            plain = ast.Name | ast.Tuple | ast.List | ast.Starred | ast.expr_context
            if all(isinstance(each, plain) for each in inside):
                return [each.id for each in inside if isinstance(each, ast.Name)]
    return [node.name.id] if type(node).__name__ == "TypeAlias" else []  # type: ignore[attr-defined]  # Python 3.12


def _imported(node: ast.Import | ast.ImportFrom) -> list[tuple[str, str]]:
    """The names that an import binds, and what they mention; "*" for all names of a module."""
    if isinstance(node, ast.Import):
        found = [(each.asname or each.name.partition(".")[0], each) for each in node.names]
        return [(name, f"{each.name if each.asname else name}:") for name, each in found]
    module = "." * node.level + (node.module or "")
    return [(each.asname or each.name, f"{module}:{each.name}") for each in node.names]


def _run_by(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Mentions of the modules that an import runs; of "a:b", b may be a module or not."""
    return [f"{each.name}:" for each in node.names] if isinstance(node, ast.Import) else [t for _, t in _imported(node)]


def _is_text(node: Any) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_type_checking(node: Any) -> bool:
    """Whether a statement is `if TYPE_CHECKING:` and nothing else."""
    plain = isinstance(node, ast.If) and not node.orelse
    return plain and "TYPE_CHECKING" in (getattr(node.test, "id", ""), getattr(node.test, "attr", ""))


def _is_main(node: Any) -> bool:
    """Whether a statement is `if __name__ == "__main__":`, for the file that Python is started with."""
    plain = isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and not node.orelse
    return plain and getattr(node.test.left, "id", "") == "__name__"
