"""Find the options of commands of click and typer."""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from ablations.service.from_script.option import (
    SEEDS,
    SEVERAL_VALUES,
    UNKNOWN,
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
from ablations.service.from_script.reach import Code, Function, Node

_KINDS = {"int": "int", "INT": "int", "IntRange": "int", "float": "float", "FLOAT": "float", "FloatRange": "float"}
_TEXTS = ("", "str", "STRING", "Path", "Choice", "File", "UUID")


@dataclass(eq=False)
class Command:
    """A command: its function, its names as a subcommand, and its subcommands (`below`)."""

    function: Function | None
    at: Node | None
    names: tuple[str, ...] = ()
    typer: bool = False
    below: list["Command"] = field(default_factory=list)
    callback: Function | None = None  # for a typer app: the function whose options precede the subcommand


def chosen(code: Code, words: Sequence[str]) -> tuple[list[Command], list[str], list[str]]:
    """Return the main command and the subcommands in `words`, from outer to inner.

    Also returns the names of these subcommands, and the possible subcommands if `words` must still name one;
    otherwise [].
    """
    top = _top(code)
    if top is None:
        return [], [], []
    levels, named = [top], list[str]()
    while levels[-1].below:
        current = levels[-1]
        if current.typer and len(current.below) == 1 and current.callback is None and len(levels) == 1:
            levels.append(current.below[0])  # the command line does not name a typer app's only command
            named.append("")
            continue
        found = next(((w, each) for w in words for each in current.below if w in each.names), None)
        if found is None:
            return levels, [name for name in named if name], [each.names[0] for each in current.below]
        named.append(found[0])
        levels.append(found[1])
    return levels, [name for name in named if name], []


def options_of(command: Command, level: int) -> list[Option]:
    """Return the options of one command. level: the number of subcommands before them."""
    found = list[Option]()
    for function in (command.function, command.callback):
        if function is None:
            continue
        if command.typer:
            found += typer_options(function)
        else:
            found += _clicked(function)
    return [replace(option, level=level) for option in found]


def _top(code: Code) -> Command | None:
    """Return the command that the script runs; None if the script has no command."""
    standalone, below = dict[str, Command](), list[tuple[str, Command]]()
    apps = {
        target.id: Command(None, node, typer=True)
        for node in code.nodes
        if isinstance(node.node, ast.Assign) and name_of(node.node.value) == "Typer"
        for target in node.node.targets
        if isinstance(target, ast.Name)
    }
    for node, function in code.functions():
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = name_of(target)
            if name not in ("command", "group", "callback"):
                continue
            of = name_of(target.value) if isinstance(target, ast.Attribute) else ""
            if name == "callback" and of in apps:
                apps[of].callback = function
                continue
            given = decorator.args[0] if isinstance(decorator, ast.Call) and decorator.args else None
            usual = function.name.lower().replace("_", "-")
            short = usual.rpartition("-")[0] if usual.rpartition("-")[2] in ("command", "cmd", "group", "grp") else ""
            names = (text_of(given),) if text_of(given) else tuple(filter(None, (usual, short)))
            command = Command(function, node, names, typer=of in apps)
            if of in apps:
                apps[of].below.append(command)
            elif of in ("click", "asyncclick", "cloup", "rich_click", ""):
                standalone[function.name] = command
            else:
                below.append((of, command))
    for of, command in below:
        if of in standalone:
            standalone[of].below.append(command)
    for at, call in code.calls():
        of = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        added = name_of(call.args[0]) if call.args else ""
        if name_of(call) == "add_command" and of in standalone and added in standalone:
            standalone[of].below.append(standalone.pop(added))
        elif name_of(call) == "add_typer" and of in apps and added in apps:
            sub = apps.pop(added)
            sub.names = (text_of(keywords(call).get("name")) or added,)
            apps[of].below.append(sub)
        elif name_of(call) == "run" and of in ("typer", "") and added and "typer" in code.imports:
            for _, called in code.definitions(added, at.file):
                if isinstance(called, Function):
                    standalone[called.name] = Command(called, at, typer=True)
    every = [*(app for app in apps.values() if app.below), *standalone.values()]
    own = [each for each in every if each.at is not None and each.at.file == code.script]
    return next(iter(own or every), None)


def _clicked(function: Function) -> Iterator[Option]:
    for call in function.decorator_list:
        if isinstance(call, ast.Call) and name_of(call) in ("option", "argument"):
            option = _declared(call)
            if option is not None:
                yield option


def _declared(call: ast.Call) -> Option | None:
    """Return the option of one decorator of click; None if the decorator has no literal name."""
    texts, words = [text for text in map(text_of, call.args) if text], keywords(call)
    flags = [text for text in texts if not text.isidentifier()]
    named = next((text for text in texts if text.isidentifier()), "")
    if name_of(call) == "argument" or not flags:
        return _argument(named or (texts[0] if texts else ""), words) if name_of(call) == "argument" else None
    flags.sort(key=lambda each: not each.strip().startswith("--"))
    first, _, second = (part.strip() for part in flags[0].partition("/"))
    every = tuple(part.strip() for flag in [first, *flags[1:]] for part in flag.split("/") if part.strip())
    name = setting_name(named or (first or second).lstrip("-").replace("-", "_"))
    default, kind = words.get("default"), words.get("type")
    value = literal(default)
    choices = (
        literal(kind.args[0], ()) if name_of(kind) == "Choice" and isinstance(kind, ast.Call) and kind.args else ()
    )
    choices = tuple(choices) if isinstance(choices, list | tuple) else ()
    kind_name = name_of(kind)
    about = describe("" if kind_name == "Choice" else kind_name, choices, literal(words.get("help")))
    option = Option(name, every or (second,), None, about, choices)
    is_flag = literal(words.get("is_flag")) is True or (second and literal(words.get("is_flag")) is not False)
    if literal(words.get("multiple"), False) is not False or literal(words.get("count"), False) is not False:
        return option.without("it may be given several times, and a setting has one value")
    if literal(words.get("nargs"), 1) != 1:
        return option.without(SEVERAL_VALUES)
    if "cls" in words or "flag_value" in words:
        return replace(option, takes_value=False).without("its class or flag_value determines its value")
    if is_flag:
        value, option = (False if default is None else value), replace(option, takes_value=False)
        if not isinstance(value, bool):
            return option.without(computed(default) if value is UNKNOWN else "it has no default")
        if second:
            return replace(option, value=value, written=switch(name, first, second))
        if value:
            return option.without(f"it is on by default, and {first} has no opposite")
        return replace(option, value=value, written=switch(name, first))
    if name in SEEDS:
        return option
    if literal(words.get("required"), False) is not False or (default is None and literal(words.get("prompt"), False)):
        return replace(option, required=True)
    return _of_kind(option, default, kind_name if kind is not None else None)


def _of_kind(option: Option, default: ast.expr | None, kind: str | None) -> Option:
    """Return the option as a setting with its default, if click parses the written default to the same value.

    Otherwise, the option is left out. kind: the name of the option's type; None if click infers the type from the
    default.
    """
    value = literal(default)
    if value is UNKNOWN:
        return option.without(computed(default))
    if isinstance(value, bool):
        if kind in (None, "bool", "BOOL"):
            return replace(option, value=value)  # click reads "true" and "false"
        return option.without(f"its default {value!r} is no {kind}")
    if value is None or isinstance(value, list | tuple):
        several = value is not None
        return option.without(SEVERAL_VALUES) if several else option
    if kind is None:
        return replace(option, value=value)
    if kind in _KINDS:
        number = as_kind(value, _KINDS[kind])
        return (
            option.without(f"its default {value!r} is no {kind}")
            if number is UNKNOWN
            else replace(option, value=number)
        )
    if kind not in _TEXTS:
        return option.without(f"the result of {kind} is not known without running it")
    return (
        replace(option, value=value) if isinstance(value, str) else option.without(f"its default {value!r} is no text")
    )


def _argument(name: str, words: dict[str, ast.expr]) -> Option | None:
    if not name:
        return None
    name = setting_name(name.replace("-", "_"))
    option = Option(name, (name,), written=f"{{{name}}}")
    optional = "default" in words or literal(words.get("required"), True) is not True
    if optional or literal(words.get("nargs"), 1) != 1:
        return option.without("an argument without a flag that may be missing: give it in --from")
    return replace(option, required=True)


def typer_options(function: Function) -> Iterator[Option]:
    """Yield the options of a function that typer calls."""
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    for argument, default in zip([*positional, *given.kwonlyargs], [*defaults, *given.kw_defaults], strict=True):
        annotation = argument.annotation
        calls = [n for n in ast.walk(annotation) if isinstance(n, ast.Call)] if annotation is not None else []
        declared = next((each for each in calls if name_of(each) in ("Option", "Argument")), None)
        flags_at = 0
        if isinstance(default, ast.Call) and name_of(default) in ("Option", "Argument"):
            declared, flags_at = default, 1
            default = declared.args[0] if declared.args else keywords(declared).get("default")
        if isinstance(default, ast.Constant) and default.value is ...:
            default = None
        words = keywords(declared)
        if "Context" in source(annotation):
            continue
        texts = [text for text in map(text_of, declared.args[flags_at:]) if text.startswith("-")] if declared else []
        base = (
            annotation.slice
            if isinstance(annotation, ast.Subscript) and name_of(annotation.value) == "Annotated"
            else annotation
        )
        kind = base.elts[0] if isinstance(base, ast.Tuple) and base.elts else base
        yield _typed(argument.arg, name_of(declared), texts, default, kind, words)


def _typed(
    argument: str, declared: str, texts: Sequence[str], default: ast.expr | None, kind: ast.expr | None,
    words: dict[str, ast.expr],
) -> Option:  # fmt: skip
    name, help_ = setting_name(argument), literal(words.get("help"))
    value = literal(default)
    if declared == "Argument" or (default is None and declared != "Option" and "default_factory" not in words):
        option = Option(name, (argument,), written=f"{{{name}}}", about=describe(source(kind), (), help_))
        if default is None and "default_factory" not in words:
            return replace(option, required=True)
        return option.without("an argument without a flag that may be missing: give it in --from")
    flags = sorted(texts, key=lambda each: not each.startswith("--")) or ["--" + argument.replace("_", "-")]
    first, _, second = flags[0].partition("/")
    every = tuple(part.strip() for flag in [first, *flags[1:]] for part in flag.split("/"))
    option = Option(name, every, about=describe(source(kind), (), help_))
    if literal(words.get("count"), False) is not False:
        return replace(option, takes_value=False).without("it may be given several times")
    if "default_factory" in words or "parser" in words or "click_type" in words:
        return option.without("its default or its value is computed")
    if name in SEEDS:
        return option
    if default is None:
        return replace(option, required=True)
    if value is UNKNOWN:
        return option.without(computed(default))
    if isinstance(value, bool):
        option = replace(option, takes_value=False)
        if not texts:
            return replace(option, value=value, written=switch(name, first, f"--no-{first.removeprefix('--')}"))
        if second:
            return replace(option, value=value, written=switch(name, first, second))
        return (
            option.without(f"it is on by default, and {first} has no opposite")
            if value
            else replace(option, value=value, written=switch(name, first))
        )
    if value is None or isinstance(value, list | tuple):
        return option if value is None else option.without(SEVERAL_VALUES)
    called = source(kind)
    if "float" in called or "int" in called:
        number = as_kind(value, "float" if "float" in called else "int")
        return (
            option.without(f"its default {value!r} is no {called}")
            if number is UNKNOWN
            else replace(option, value=number)
        )
    simple = isinstance(value, str) == (kind is None or "str" in called or "Path" in called or "Literal" in called)
    return replace(option, value=value) if simple else option.without(f"its default {value!r} is no {called}")
