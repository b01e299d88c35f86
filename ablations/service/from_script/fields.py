"""Find options that a library derives from the fields of dataclasses or the parameters of functions and classes."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from ablations.service.from_script.reach import Code, Definition, Function, Node

# Keyword arguments of tyro.cli that change no option.
_OF_TYRO = {"description", "prog", "args", "return_unknown_args", "console_outputs", "add_help", "use_underscores"}
_FIELDS = ("field", "HfArg", "Field")


@dataclass(frozen=True)
class Style:
    """The form of a library's options.

    bools: the texts for true and false; None if the library has a pair of switches for them.
    """

    name: str
    bools: tuple[str, str] | None = ("true", "false")
    dashes: bool = False  # dashes replace underscores in names of options
    nested: bool = True  # fields of a nested dataclass have dotted names
    equals: bool = False  # the library accepts --name=value, but not --name value
    plain_texts: bool = False  # the library reads texts as Python, so texts that look like literals are left out
    positional: bool = False  # fields without a default are arguments without a flag


TYRO = Style("tyro", bools=None, dashes=True)
TRANSFORMERS = Style("HfArgumentParser", nested=False)
SIMPLE_PARSING = Style("simple_parsing", nested=False)
DRACCUS = Style("draccus")
JSONARGPARSE = Style("jsonargparse", positional=True)
FIRE = Style("fire", bools=("True", "False"), nested=False, equals=True, plain_texts=True, positional=True)


@dataclass(frozen=True)
class Root:
    """A dataclass or function whose fields or parameters are options.

    called: the name of the dataclass or function in the script. prefix: the text before each option's name. changed:
    the reason why no option can be a setting; "" if options can be settings.
    """

    style: Style
    definition: Definition | None
    file: Path
    called: str
    prefix: str = ""
    changed: str = ""


def roots(code: Code) -> Iterator[Root]:
    """Yield the classes and functions that the script passes to a library that derives options from them."""
    for at, call in code.calls():
        name, words = name_of(call), keywords(call)
        of = name_of(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        first = call.args[0] if call.args else None
        if name in ("HfArgumentParser", "TrlParser", "H4ArgumentParser"):
            given = first or words.get("dataclass_types")
            yield from _named(code, at, given, TRANSFORMERS)
        elif (of == "tyro" and name == "cli") or (name == "cli" and "tyro" in code.imports and not of):
            extra = sorted(set(words) - _OF_TYRO - {"f"})
            changed = f"{source(call)} changes the options" if extra or len(call.args) > 1 else ""
            style = replace(TYRO, dashes=literal(words.get("use_underscores"), False) is not True)
            yield from _named(code, at, first or words.get("f"), style, changed=changed)
        elif name in ("add_arguments",) and "simple_parsing" in code.imports:
            yield from _named(code, at, first or words.get("dataclass"), SIMPLE_PARSING)
        elif name == "parse" and of in ("simple_parsing", "sp"):
            yield from _named(code, at, first or words.get("config_class"), SIMPLE_PARSING)
        elif name == "parse" and of in ("draccus", "pyrallis"):
            yield from _named(code, at, first or words.get("config_class"), DRACCUS)
        elif name in ("CLI", "auto_cli") and "jsonargparse" in code.imports:
            if first is None and "components" not in words:
                yield Root(JSONARGPARSE, None, at.file, source(call), changed=f"{source(call)} uses its whole module")
            yield from _named(code, at, first or words.get("components"), JSONARGPARSE)
        elif name == "Fire":
            yield from _named(code, at, first, FIRE)
        elif name == "LightningCLI":
            data = call.args[1] if len(call.args) > 1 else words.get("datamodule_class")
            for given, prefix in ((first or words.get("model_class"), "model."), (data, "data.")):
                if given is not None:
                    yield from _named(code, at, given, replace(JSONARGPARSE, positional=False), prefix=prefix)
    for node, function in code.functions():
        for decorator in function.decorator_list:
            target = decorator.func if isinstance(decorator, ast.Call) else decorator
            of = name_of(target.value) if isinstance(target, ast.Attribute) else ""
            if name_of(target) == "wrap" and of in ("draccus", "pyrallis") and function.args.args:
                yield from _named(code, node, function.args.args[0].annotation, DRACCUS)


def _named(
    code: Code, at: Node, given: ast.AST | None, style: Style, prefix: str = "", changed: str = ""
) -> Iterator[Root]:
    """Yield a root for each definition that an expression names: one, or several in a tuple or a list."""
    if isinstance(given, ast.Name):
        value = next((n.node.value for n in code.nodes if n.file == at.file and isinstance(n.node, ast.Assign)
                      and any(isinstance(t, ast.Name) and t.id == given.id for t in n.node.targets)), None)  # fmt: skip
        given = value if isinstance(value, ast.Tuple | ast.List) else given
    every: Sequence[ast.AST | None] = given.elts if isinstance(given, ast.Tuple | ast.List) else [given]
    for each in every:
        if isinstance(each, ast.Name | ast.Attribute):
            found = code.definitions(name_of(each), at.file)
            file, definition = found[-1] if found else (at.file, None)
            yield Root(style, definition, file, source(each), prefix, changed)
        elif each is not None:
            yield Root(style, None, at.file, source(each), prefix, changed or f"{source(each)} is no name of a class")


def options_of(root: Root, code: Code, overrides: Mapping[str, ast.expr] | None = None) -> list[Option]:
    """Return the options of a root. overrides: name of a field → the expression that replaces its default."""
    if root.definition is None:
        return []
    if isinstance(root.definition, Function):
        fields = _parameters(root.definition)
    else:
        fields = _fields(root.definition, root.file, code)
        if not fields:
            methods = [each for each in root.definition.body if isinstance(each, Function) and each.name == "__init__"]
            fields = _parameters(methods[0]) if methods else []
    found = list[Option]()
    for field in fields:
        found += _field(field, root, code, (overrides or {}).get(field.name))
    return [option.without(root.changed) for option in found] if root.changed else found


@dataclass(frozen=True)
class Field:
    """A field of a dataclass, or a parameter. default: the expression of the default; None if there is no default."""

    name: str
    annotation: ast.expr | None
    default: ast.expr | None
    about: str = ""
    factory: ast.expr | None = None
    marked: str = ""  # reason why the annotation prevents a setting; "" if there is none


def _parameters(function: Function) -> list[Field]:
    given = function.args
    positional = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(positional) - len(given.defaults)) + list(given.defaults)
    pairs = [*zip(positional, defaults, strict=True), *zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    return [_annotated(Field(a.arg, a.annotation, default)) for a, default in pairs if a.arg not in ("self", "cls")]


def _fields(kind: ast.ClassDef, file: Path, code: Code, depth: int = 0) -> list[Field]:
    """Return the fields of a dataclass, and of its base classes that are in the script's files."""
    found: dict[str, Field] = {}
    for base in kind.bases if depth < 8 else ():
        for place, each in code.definitions(name_of(base), file)[:1]:
            if isinstance(each, ast.ClassDef):
                found |= {field.name: field for field in _fields(each, place, code, depth + 1)}
    for node in kind.body:
        if (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Name)
            and "ClassVar" not in source(node.annotation)
        ):
            name, words, value = node.target.id, keywords(node.value), node.value
            about, factory = "", None
            if name_of(value) in _FIELDS and isinstance(value, ast.Call):
                metadata = literal(words.get("metadata"), {})
                about = str((metadata if isinstance(metadata, dict) else {}).get("help", ""))
                about = about or text_of(words.get("help"))
                if literal(words.get("init"), True) is False:
                    found.pop(name, None)
                    continue
                factory, value = words.get("default_factory"), words.get("default")
            found[name] = _annotated(Field(name, node.annotation, value, about, factory))
    return list(found.values())


def _annotated(field: Field) -> Field:
    """Return the field without Annotated[…] around its type. Mark the field if its type has further constraints."""
    annotation = field.annotation
    if isinstance(annotation, ast.Subscript) and name_of(annotation.value) == "Annotated":
        inner = annotation.slice
        kind = inner.elts[0] if isinstance(inner, ast.Tuple) and inner.elts else None
        return replace(field, annotation=kind, marked=f"its type has constraints: {source(annotation)}")
    if isinstance(annotation, ast.Subscript) and "conf" in source(annotation.value):
        return replace(field, marked=f"its type has constraints: {source(annotation)}")
    return field


def _field(field: Field, root: Root, code: Code, override: ast.expr | None) -> Iterator[Option]:
    style, name = root.style, f"{root.prefix}{field.name}"
    written = f"--{name.replace('_', '-') if style.dashes else name}"
    about = describe(source(field.annotation), (), field.about)
    option = Option(setting_name(name), (written,), about=about)
    default = override if override is not None else field.default
    nested = _nested(field, default, root, code)
    if field.marked:
        yield option.without(field.marked)
    elif nested is not None:
        inner, overrides = nested
        if style.nested and overrides is not None:
            yield from options_of(replace(inner, prefix=f"{name}."), code, overrides)
        elif style.nested:
            yield option.without(computed(default or field.factory))
        else:
            yield option.without(f"{style.name} chooses the names of the options of {inner.called}")
    elif field.factory is not None and override is None:
        yield option.without(computed(field.factory))
    elif default is None:
        if field.name in SEEDS and not root.prefix:
            yield option
        elif style.positional:
            yield Option(option.name, (field.name,), about=about, written=f"{{{option.name}}}", required=True)
        else:
            yield replace(option, required=True)
    elif field.name in SEEDS and not root.prefix:
        yield _spelled(replace(option, value=None), style)
    else:
        yield _of_type(option, default, field.annotation, style)


def _nested(
    field: Field, default: ast.expr | None, root: Root, code: Code
) -> tuple[Root, Mapping[str, ast.expr] | None] | None:
    """Return the dataclass of a field, and the overrides in the field's default; None for a field of another type.

    The overrides are None if the default is computed, and not a call of the class with keyword arguments.
    """
    kinds = [
        each for each in code.definitions(name_of(field.annotation), root.file) if isinstance(each[1], ast.ClassDef)
    ]
    if not isinstance(field.annotation, ast.Name | ast.Attribute) or not kinds:
        return None
    file, kind = kinds[-1]
    if not any(name_of(each) in ("dataclass", "define", "frozen") for each in kind.decorator_list):
        return None
    inner = replace(root, definition=kind, file=file, called=kind.name)
    if field.factory is not None and default is None:
        made = field.factory.body if isinstance(field.factory, ast.Lambda) else field.factory
        if not isinstance(made, ast.Call):
            return inner, {} if name_of(made) == kind.name else None
        default = made
    if default is None:
        return inner, {}
    plain = isinstance(default, ast.Call) and name_of(default) == kind.name and not default.args
    return inner, keywords(default) if plain else None


def _of_type(option: Option, default: ast.expr, annotation: ast.expr | None, style: Style) -> Option:
    """Return the option as a setting with its default.

    The option is left out if the library would not parse the written default to the same value.
    """
    value, kind = literal(default), source(annotation)
    if value is UNKNOWN:
        return option.without(computed(default))
    if value is None:
        return option
    if "Union" in kind.replace("Optional", "") or ("|" in kind and kind.replace("None", "").strip(" |").count("|")):
        return option.without(f"its type {kind} allows several types")
    if isinstance(value, bool):
        if annotation is not None and "bool" not in kind:
            return option.without(f"its default {value!r} is no {kind}")
        if style.bools is None:
            flag = option.flag
            head, dot, last = flag.removeprefix("--").rpartition(".")
            no = f"--{head}{dot}no-{last}"
            return replace(option, value=value, written=switch(option.name, flag, no), takes_value=False)
        true, false = style.bools
        if (true, false) == ("true", "false"):
            return _spelled(replace(option, value=value), style)
        return replace(
            option, value=value, written=switch(option.name, f"{option.flag}={true}", f"{option.flag}={false}")
        )
    if isinstance(value, list | tuple | dict | set):
        return option.without(SEVERAL_VALUES)
    if annotation is not None and ("int" in kind or "float" in kind) and "Literal" not in kind:
        number = as_kind(value, "float" if "float" in kind else "int") if not isinstance(value, str) else UNKNOWN
        return (
            option.without(f"its default {value!r} is no {kind}")
            if number is UNKNOWN
            else _spelled(replace(option, value=number), style)
        )
    if isinstance(value, str) and style.plain_texts and not _no_python(value):
        return option.without(f"{style.name} reads {value!r} as Python")
    if annotation is not None and isinstance(value, str) and not any(t in kind for t in ("str", "Path", "Literal")):
        return option.without(f"its default {value!r} is no {kind}")
    return _spelled(replace(option, value=value), style)


def _spelled(option: Option, style: Style) -> Option:
    """Return the option, written as `--name=value` if the library accepts only this form."""
    return replace(option, written=f"{option.flag}={{{option.name}}}") if style.equals else option


def _no_python(text: str) -> bool:
    """Return whether a text cannot be mistaken for a literal of Python."""
    return text.replace("-", "_").replace("/", "_").isidentifier() and text not in ("True", "False", "None")


def unread(found: Sequence[Root]) -> list[str]:
    """Return a remark for each root whose options are not read."""
    return [
        f"the options of {root.called} are not read: {root.changed or 'its class is not among the files of the script'}"
        for root in found
        if root.definition is None or root.changed
    ]
