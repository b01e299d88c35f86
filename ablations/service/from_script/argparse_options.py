"""Find the options that a script adds to a parser of argparse, optparse or configargparse, or of a subclass."""

import ast
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ablations.service.from_script.option import (
    SEEDS,
    SEVERAL_VALUES,
    UNKNOWN,
    Keywords,
    Option,
    as_kind,
    computed,
    describe,
    keywords,
    literal,
    name_of,
    setting_name,
    source,
    switch,
    text_of,
)
from ablations.service.from_script.reach import Code, Function, Node, parameter_of

PARSES = ("parse_args", "parse_known_args", "parse_intermixed_args", "parse_known_intermixed_args")
_GROUPS = ("add_argument_group", "add_mutually_exclusive_group")
_LISTS = ("append", "append_const", "count", "extend")
_TEXTS = (
    "",
    "string",
    "choice",
    "str",
    "Path",
    "pathlib.Path",
    "os.path.expanduser",
    "os.path.abspath",
    "os.fspath",
    "device",
)
_LITERALS = ("eval", "literal_eval", "loads")


@dataclass(eq=False)
class Parser:
    """A parser that the script creates. names: for a subparser, the name and aliases of its subcommand."""

    made: ast.Call
    at: Node
    names: tuple[str, ...] = ()
    above: "Parser | None" = None
    parents: list["Parser"] = field(default_factory=list)
    arguments: list["Argument"] = field(default_factory=list)
    defaults: dict[str, ast.expr] = field(default_factory=dict)


@dataclass(eq=False)
class Argument:
    """A call of add_argument or add_option. excludes: the call that creates its mutually exclusive group."""

    call: ast.Call
    at: Node
    excludes: ast.Call | None = None

    @property
    def flags(self) -> list[str]:
        texts = [text for text in map(text_of, self.call.args) if text]
        return sorted(texts, key=lambda each: (not each.startswith("--"), not each.startswith("-")))

    @property
    def destination(self) -> str:
        named = text_of(keywords(self.call).get("dest"))
        return named or (self.flags[0].lstrip("-").replace("-", "_") if self.flags else "")


class Parsers:
    """The parsers in the code that a run of the script reaches (reach.py).

    `chosen` returns the parsers that parse the command.
    """

    def __init__(self, code: Code) -> None:
        self._code = code
        self._calls = list(code.calls())
        self._by_name: dict[str, list[tuple[Node, ast.Call]]] = {}
        for at, call in self._calls:
            self._by_name.setdefault(name_of(call), []).append((at, call))
        self._made = dict[int, Parser]()
        self._unknown = Parser(ast.Call(ast.Name("unknown"), [], []), Node(code.script, None, (), ast.Pass()))
        self.remarks = list[str]()
        for at, call in self._calls:
            if name_of(call).endswith(("ArgumentParser", "ArgParser", "OptionParser")):
                self._made.setdefault(id(call), Parser(call, at))
            elif name_of(call) == "add_parser" and call.args:
                kept = literal(keywords(call).get("aliases"), ())
                aliases = kept if isinstance(kept, list | tuple) else ()
                names = (text_of(call.args[0]), *map(str, aliases))
                self._made.setdefault(id(call), Parser(call, at, names))
        for parser in self._made.values():
            self._relate(parser)
        self._add()

    def chosen(self, words: Sequence[str]) -> tuple[list[Parser], list[str], list[str]]:
        """Return the parsers that parse the command, and its subcommands.

        The parsers are the main parsers, then the unknown parser (whose arguments may belong to any parser), then one
        parser per level of subcommands. The second value has the subcommands in `words`. The third value has the
        possible subcommands if `words` must still name one; otherwise it is empty.
        """
        own = [parser for parser in self._made.values() if not parser.names]
        parse, elsewhere = list[Parser](), list[Parser]()
        for at, call in self._calls:
            if name_of(call) in PARSES and isinstance(call.func, ast.Attribute):
                given = call.args[0] if call.args else keywords(call).get("args")
                fixed = isinstance(given, ast.List | ast.Tuple)
                (elsewhere if fixed else parse).extend(self.owners(call.func.value, at))
        shared = {id(parent) for parser in self._made.values() for parent in parser.parents}
        parse = [parser for parser in dict.fromkeys(parse) if parser is not self._unknown and not parser.names]
        if not parse:
            parse = [one for one in own if id(one) not in shared and one not in elsewhere]
        levels, named = [*parse, self._unknown], list[str]()
        current = parse
        for _ in range(4):
            below = [each for each in self._made.values() if each.names and each.above in (*current, self._unknown)]
            below = [each for each in below if each not in levels]
            if not below:
                break
            found = next(((w, each) for w in words for each in below if w in each.names), None)
            if found is None:
                return levels, named, [each.names[0] for each in below]
            named.append(found[0])
            levels.append(found[1])
            current = [found[1]]
        return levels, named, []

    def owners(self, node: ast.AST | None, at: Node) -> list[Parser]:
        """Return the parsers to which an expression may refer; a list with the unknown parser if they are not known."""
        found = list(dict.fromkeys(self._owners(node, at, 0)))
        return [parser for parser in found if parser is not self._unknown] or found

    def _owners(self, node: ast.AST | None, at: Node, depth: int) -> list[Parser]:
        if node is None or depth > 8:
            return [self._unknown]
        if isinstance(node, ast.Call):
            if id(node) in self._made:
                return [self._made[id(node)]]
            if name_of(node) == "OptionGroup" and node.args:
                return self._owners(node.args[0], at, depth + 1)
            if name_of(node) in (*_GROUPS, "add_subparsers") and isinstance(node.func, ast.Attribute):
                return self._owners(node.func.value, at, depth + 1)
            for file, function in self._functions(node, at.file):
                for each in (n for n in ast.walk(function) if isinstance(n, ast.Return) and n.value):
                    return self._owners(each.value, Node(file, function, (), each), depth + 1)
            return [self._unknown]
        value = self._assigned(node, at)
        if value is not None:
            return [one for each, place in value for one in self._owners(each, place, depth + 1)]
        return [self._unknown]

    def group(self, node: ast.AST, at: Node) -> ast.Call | None:
        """Return the call that created a mutually exclusive group, if the expression is such a group; else None."""
        values = [(node, at)] if isinstance(node, ast.Call) else self._assigned(node, at) or []
        for value, _ in values:
            if isinstance(value, ast.Call) and name_of(value) == "add_mutually_exclusive_group":
                return value
        return None

    def _assigned(self, node: ast.AST, at: Node) -> list[tuple[ast.AST, Node]] | None:
        """Return the expressions assigned to a name or an attribute, with their places; None if they are unknown."""
        if isinstance(node, ast.Attribute):
            return [(each.node.value, each) for each in self._code.setting(node.attr)[:1]] or None  # type: ignore[attr-defined]
        if not isinstance(node, ast.Name):
            return None
        for loop in (n for n in at.around if isinstance(n, ast.For) and isinstance(n.target, ast.Name)):
            if loop.target.id == node.id and isinstance(loop.iter, ast.List | ast.Tuple):  # type: ignore[attr-defined]
                outside = replace(at, around=tuple(n for n in at.around if n is not loop))
                return [(each, outside) for each in loop.iter.elts]
        for scope in dict.fromkeys((at.function, None)):
            for each in self._code.binding(node.id, at.file, scope):
                value = _bound(each.node, node.id)
                if value is not None and not (isinstance(value, ast.Call) and _returns_itself(value, node.id)):
                    return [(value, each)]
            if scope is not None and (given := self._arguments(scope, node.id)):
                return given
        return None

    def _arguments(self, function: Function, name: str) -> list[tuple[ast.AST, Node]]:
        """Return the arguments that the calls of a function pass for a parameter, with their places."""
        found = list[tuple[ast.AST, Node]]()
        for at, call in self._by_name.get(function.name, ()):
            value = parameter_of(function, call, name)
            itself = at.function is function and isinstance(value, ast.Name) and value.id == name
            if value is not None and not itself:
                found.append((value, at))
        return found

    def _functions(self, call: ast.Call, file: Path) -> Iterator[tuple[Path, Function]]:
        for place, each in self._code.definitions(name_of(call), file):
            if isinstance(each, Function):
                yield place, each

    def _relate(self, parser: Parser) -> None:
        """Find the parents of a parser and, for a subparser, the parser above it."""
        parents = keywords(parser.made).get("parents")
        for each in parents.elts if isinstance(parents, ast.List | ast.Tuple) else ():
            parser.parents += [one for one in self.owners(each, parser.at) if one is not self._unknown]
        if parser.names and isinstance(parser.made.func, ast.Attribute):
            parser.above = self.owners(parser.made.func.value, parser.at)[0]

    def _add(self) -> None:
        for at, call in self._calls:
            if name_of(call) in ("add_argument", "add_option") and isinstance(call.func, ast.Attribute):
                argument = Argument(call, at, self.group(call.func.value, at))
                for parser in self.owners(call.func.value, at):
                    parser.arguments.append(argument)
            elif name_of(call) == "set_defaults" and isinstance(call.func, ast.Attribute):
                for parser in self.owners(call.func.value, at):
                    parser.defaults |= keywords(call)
                if any(word.arg is None for word in call.keywords) or at.conditional:
                    place = f"{at.file.name}:{call.lineno}"
                    self.remarks.append(f"{place} changes defaults while the script runs: {source(call)}")


def _bound(node: ast.AST, name: str) -> ast.AST | None:
    """Return the expression that a statement binds to a name; None if it binds none."""
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == name for t in node.targets):
        return node.value
    if isinstance(node, ast.AnnAssign | ast.NamedExpr) and isinstance(node.target, ast.Name) and node.target.id == name:
        return node.value
    if isinstance(node, ast.With):
        for item in node.items:
            if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name:
                return item.context_expr
    return None


def _returns_itself(call: ast.Call, name: str) -> bool:
    """Return whether a call has the name `name` as an argument, as in parser = add_options(parser)."""
    return any(isinstance(argument, ast.Name) and argument.id == name for argument in call.args)


def options_of(parser: Parser, level: int, code: Code) -> list[Option]:
    """Return the options of one parser and of its parents. level: the number of subcommands before them."""
    arguments, defaults = list[Argument](), dict[str, ast.expr]()
    for each in (*parser.parents, parser):
        arguments += each.arguments
        defaults |= each.defaults
    by_destination: dict[str, list[Argument]] = {}
    for argument in arguments:
        by_destination.setdefault(argument.destination, []).append(argument)
    found = list[Option]()
    for destination, same in by_destination.items():
        if not destination:
            continue
        if len(same) > 1:
            found.append(_shared(destination, same, defaults))
        else:
            option = _single(same[0], defaults, code)
            found += [option] if option else []
    return [replace(option, level=level) for option in _exclusive(found, arguments)]


def _exclusive(options: Iterable[Option], arguments: Sequence[Argument]) -> Iterator[Option]:
    """Yield all options.

    An option that the command would always contain is marked as left out if it belongs to a mutually exclusive group.
    """
    members: dict[int, set[str]] = {}
    for argument in arguments:
        if argument.excludes is not None:
            members.setdefault(id(argument.excludes), set()).update(argument.flags[:1])
    for option in options:
        among = next((each for each in members.values() if option.flag in each), set())
        always = "|--" in option.written or not option.written.startswith("{")
        if len(among) > 1 and always and not option.left_out:
            option = option.without(f"only one of {', '.join(sorted(among))} may be given")
        yield option


def _default(argument: Argument, defaults: Keywords) -> ast.expr | None:
    return defaults.get(argument.destination, keywords(argument.call).get("default"))


def _action(argument: Argument) -> str:
    node = keywords(argument.call).get("action")
    return text_of(node) or (name_of(node) or "?" if node is not None else "store")


def _shared(destination: str, same: Sequence[Argument], defaults: Keywords) -> Option:
    """Return one option for several arguments with the same destination.

    The option becomes a setting only if one switch sets the destination to true and another sets it to false. Otherwise
    the option is left out.
    """
    flags = tuple(flag for argument in same for flag in argument.flags)
    about = text_of(keywords(same[0].call).get("help"))
    option = Option(setting_name(destination), flags, about=about, takes_value=False)
    if any(argument.at.conditional for argument in same):
        return option.without("the script adds it only under a condition, or in several places")
    sets: dict[Any, str] = {}
    for argument in same:
        constant = {"store_true": True, "store_false": False}.get(_action(argument), UNKNOWN)
        if _action(argument) == "store_const":
            constant = literal(keywords(argument.call).get("const"))
        if isinstance(constant, bool) and argument.flags[0].startswith("-"):
            sets.setdefault(constant, argument.flags[0])
    usual = {"store_true": False, "store_false": True}.get(_action(same[0]))
    node = _default(same[0], defaults)
    value = usual if node is None else literal(node)
    if len(sets) == 2 and isinstance(value, bool):
        return replace(option, value=value, written=switch(option.name, sets[True], sets[False]))
    if value is UNKNOWN:
        return option.without(computed(node))
    return option.without(f"several options set {destination}: {', '.join(flags)}")


def _single(argument: Argument, defaults: Keywords, code: Code) -> Option | None:
    """Return the option of one call of add_argument.

    Return None for --help, for --version, and for an option whose name is not a literal.
    """
    words, flags, action = keywords(argument.call), tuple(argument.flags), _action(argument)
    if not flags or action in ("version", "help") or "-h" in flags or "--help" in flags:
        return None
    default = _default(argument, defaults)
    value, kind = literal(default), words.get("type")
    given = literal(words.get("choices"), ())
    choices = tuple(given) if isinstance(given, list | tuple | range) else ()
    about = describe(source(kind), choices, literal(words.get("help")))
    option = Option(setting_name(argument.destination), flags, None, about, choices)
    if argument.at.conditional and not _of_loop(argument):
        return option.without("the script adds it only under a condition, or several times")
    first = flags[0]
    switches = action in ("store_true", "store_false", "store_const")
    if not switches and action not in ("store", "BooleanOptionalAction"):
        what = "it may be given several times" if action in _LISTS else f"its action is {action}"
        takes = action not in ("count", "append_const")
        return replace(option, takes_value=takes).without(f"{what}, and a setting has one value")
    if switches:
        return _switch(replace(option, takes_value=False), action, default, words)
    if action == "BooleanOptionalAction":
        option = replace(option, takes_value=False)
        if not isinstance(value, bool):
            return option.without(computed(default) if value is UNKNOWN else "it has no default")
        return replace(option, value=value, written=switch(option.name, first, f"--no-{first.removeprefix('--')}"))
    count, required = words.get("nargs"), literal(words.get("required"), False)
    several = count is not None and literal(count) != "?"
    if not first.startswith("-"):  # a positional argument
        if count is None or (literal(count) not in ("?", "*", UNKNOWN) and source(count) != "argparse.REMAINDER"):
            return replace(option, required=True, written=f"{{{option.name}}}")
        return option.without("an argument without a flag that may be missing: give it in --from")
    if option.name in SEEDS and not several:
        return option
    if required is True:
        return replace(option, required=True)
    if required is not False:
        return option.without(f"it may be required: {source(words.get('required'))}")
    if several:
        return option.without(SEVERAL_VALUES)
    if source(default).endswith("SUPPRESS"):
        return option.without("it has no default")
    if value is UNKNOWN:
        return option.without(computed(default))
    if value is None:
        return option
    if choices and value not in choices and as_kind(value, source(kind)) not in choices:
        return option.without(f"its default {value!r} is none of its choices")
    return _converted(option, value, kind, argument.at.file, code)


def _of_loop(argument: Argument) -> bool:
    """Return whether the only block around the call is a loop over parsers, which adds the argument to each parser."""
    of = argument.call.func.value if isinstance(argument.call.func, ast.Attribute) else None
    loop = argument.at.around[0]
    same = isinstance(loop, ast.For) and isinstance(of, ast.Name) and name_of(loop.target) == of.id
    return len(argument.at.around) == 1 and same and isinstance(loop.iter, ast.List | ast.Tuple)  # type: ignore[attr-defined]


def _switch(option: Option, action: str, default: ast.expr | None, words: Keywords) -> Option:
    """Return a switch (an option that takes no value) as a setting that is true or false.

    The option is left out if it does not change the script's value, or if this value is computed.
    """
    usual = {"store_true": False, "store_false": True}.get(action)
    constant = literal(words.get("const")) if action == "store_const" else not usual
    value = usual if default is None else literal(default)
    if value is UNKNOWN or constant is UNKNOWN:
        return option.without(computed(default if value is UNKNOWN else words.get("const")))
    if bool(value) == bool(constant) and (isinstance(constant, bool) or value == constant):
        return option.without(f"it is always {value!r}, because {option.flag} sets the same value")
    if action == "store_false":
        return replace(option, value=True, written=switch(option.name, "", option.flag))
    if not isinstance(constant, bool):  # the setting is named after the flag and is true if the flag is given
        name = setting_name(option.flag.lstrip("-").replace("-", "_"))
        return replace(option, name=name, value=False, written=switch(name, option.flag),
                       about=f"sets {source(words.get('const'))}; {option.about}".rstrip("; "))  # fmt: skip
    if constant is False:
        return replace(option, value=True, written=switch(option.name, "", option.flag))
    return replace(option, value=False, written=switch(option.name, option.flag))


def _converted(option: Option, value: Any, kind: ast.expr | None, file: Path, code: Code) -> Option:
    """Return the option as a setting with its default, if the converter parses the written default to the same value.

    Otherwise, the option is left out. kind: the converter that the script passes as `type`.
    """
    named, flag = text_of(kind) or source(kind), option.flag  # optparse gives types as strings
    equals = "=" if flag.startswith("--") else ""
    if named in ("int", "float", "lambda x: int(float(x))"):
        number = as_kind(value, "float" if named == "float" else "int")
        if number is UNKNOWN:
            return option.without(f"{named} never returns its default {value!r}")
        return replace(option, value=number)
    truth = ("true", "") if named == "bool" else truths(kind, file, code)
    if truth is not None and isinstance(value, bool):
        if not equals:
            return option.without(f"its value must be written after `=`, which {flag} does not allow")
        return replace(option, value=value, written=switch(option.name, f"{flag}={truth[0]}", f"{flag}={truth[1]}"))
    if name_of(kind) in _LITERALS:
        if isinstance(value, bool) and equals:
            true, false = ("true", "false") if name_of(kind) == "loads" else ("True", "False")
            return replace(option, value=value, written=switch(option.name, f"{flag}={true}", f"{flag}={false}"))
        simple = isinstance(value, int | float) and not isinstance(value, bool)
        return replace(option, value=value) if simple else option.without(f"{named} converts its text")
    if named not in _TEXTS and name_of(kind) not in ("str", "Path", "device"):
        return option.without(f"the result of {named} is not known without running it (--ask)")
    if not isinstance(value, str):
        return option.without(f"its default {value!r} is no text, and without type= the script gets a text")
    return replace(option, value=value)


def truths(kind: ast.expr | None, file: Path, code: Code) -> tuple[str, str] | None:
    """Return the texts that a converter of the script reads as True and False; None if its code does not show them."""
    if isinstance(kind, ast.Lambda):
        return _test_of(kind.body)
    if name_of(kind) == "strtobool":
        return "true", "false"
    function = next((each for _, each in code.definitions(name_of(kind), file) if isinstance(each, Function)), None)
    if function is None:
        return None
    found: dict[bool, str] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and node.body:
            returned = node.body[0]
            value = literal(returned.value) if isinstance(returned, ast.Return) else None
            texts = literal(node.test.comparators[0])
            one = [texts] if isinstance(texts, str) else texts
            if isinstance(value, bool) and isinstance(one, list | tuple | set) and _of_text(node.test):
                text = next((t for t in sorted(map(str, one)) if t.lower() in ("true", "false")), None)
                if text is not None:
                    found.setdefault(value, text)
    if set(found) == {True, False} and found[True].lower() == "true" and found[False].lower() == "false":
        return found[True], found[False]
    last = function.body[-1]
    return _test_of(last.value) if isinstance(last, ast.Return) and len(function.body) <= 2 else None


def _of_text(test: ast.Compare) -> bool:
    """Return whether a comparison tests a variable, or its lower case, with `in` or `==`: v.lower() in ("yes", …)."""
    left = test.left.func.value if isinstance(test.left, ast.Call) and name_of(test.left) == "lower" else test.left  # type: ignore[attr-defined]
    return isinstance(left, ast.Name) and len(test.ops) == 1 and isinstance(test.ops[0], ast.In | ast.Eq)


def _test_of(node: ast.AST | None) -> tuple[str, str] | None:
    """Return one text that makes an expression true and one that makes it false.

    Return None if the expression does not test a text.
    """
    if isinstance(node, ast.Call) and name_of(node) == "bool" and len(node.args) == 1:
        node = node.args[0]
    if isinstance(node, ast.Call) and name_of(node) == "strtobool":
        return "true", "false"
    if isinstance(node, ast.Compare) and _of_text(node):
        texts = literal(node.comparators[0])
        one = [texts] if isinstance(texts, str) else texts
        if isinstance(one, list | tuple | set) and (found := [t for t in one if str(t).lower() == "true"]):
            return str(found[0]), "false"
    return None
