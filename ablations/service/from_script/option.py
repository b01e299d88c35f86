"""Represent the options of a script, and convert their defaults to settings. Only literal defaults are converted."""

import ast
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from experiments.tasks.own.command import GIVEN, CommandConfig

SEEDS = ("seed", "random_seed", "random_state", "manual_seed", "rng_seed")
UNKNOWN: Any = object()  # the value of an expression that is not a literal
SEVERAL_VALUES = "it takes several values, and a setting has one value"  # reason to leave an option out
LARGEST = (1 << 63) - 1  # TOML's largest integer


@dataclass(frozen=True)
class Option:
    """An option of a script.

    flags: all spellings; the first one is written into the command. value: the literal default; None if there is none.
    written: the text of the option in the command; if empty, the flag and the value. left_out: the reason why the
    option is not a setting; "" if it is one. level: the number of subcommands before the option in the command.
    """

    name: str
    flags: tuple[str, ...]
    value: Any = None
    about: str = ""
    choices: Sequence[Any] = ()
    written: str = ""
    required: bool = False
    left_out: str = ""
    level: int = 0
    takes_value: bool = True
    in_file: bool = False  # a key of a configuration file, which is not in the command

    @property
    def flag(self) -> str:
        """The spelling that messages and the command use."""
        return self.flags[0]

    @property
    def positional(self) -> bool:
        """Whether the option has no flag, so that its position in the command matters."""
        return not self.flag.startswith("-") and "=" not in self.written and not self.in_file

    def without(self, reason: str) -> "Option":
        """Return a copy of this option that is left out of the settings. An earlier reason is kept."""
        return replace(self, left_out=self.left_out or reason)


@dataclass(frozen=True)
class Options:
    """The options of a script, the words of its command, and remarks for the user about options that were not read."""

    options: Sequence[Option]
    words: Sequence[str]
    cuts: Sequence[int] = ()  # indices of the subcommands in `words`
    remarks: Sequence[str] = ()


def name_of(node: ast.AST | None) -> str:
    """Return the last name of an expression, or of the function that it calls.

    For parser.add_argument(…), this is add_argument.
    """
    node = node.func if isinstance(node, ast.Call) else node
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def keywords(node: ast.AST | None) -> dict[str, ast.expr]:
    """Return the keyword arguments of a call."""
    return {word.arg: word.value for word in node.keywords if word.arg} if isinstance(node, ast.Call) else {}


def literal(node: ast.AST | None, missing: Any = None) -> Any:
    """Return the value of a literal; UNKNOWN for another expression, `missing` if there is no expression."""
    if node is None:
        return missing
    try:
        return ast.literal_eval(node) if isinstance(node, ast.expr) else UNKNOWN
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return UNKNOWN


def text_of(node: ast.AST | None) -> str:
    """Return the value of a string literal; "" for any other node."""
    value = literal(node)
    return value if isinstance(value, str) else ""


def source(node: ast.AST | None) -> str:
    """Return the source of an expression as one short line."""
    text = " ".join(ast.unparse(node).split()) if node is not None else ""
    return text if len(text) <= 80 else f"{text[:79]}…"


def computed(node: ast.AST | None) -> str:
    """Return the reason for leaving out an option whose default is not a literal."""
    return f"its default is computed: {source(node)}"


def one_line(text: str) -> str:
    """Return a text as one printable line, for a comment in TOML."""
    return " ".join("".join(c if c.isprintable() or c.isspace() else "?" for c in text).split())


def toml(value: Any) -> str:
    """Return a value in TOML; "" for a value that a setting cannot have."""
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ""
    if isinstance(value, list):
        parts = [toml(item) for item in value]
        return f"[{', '.join(parts)}]" if all(parts) else ""
    if isinstance(value, int):
        return json.dumps(value) if isinstance(value, bool) or abs(value) <= LARGEST else ""
    if not isinstance(value, str) or any("\ud800" <= c <= "\udfff" for c in value):
        return ""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def setting_name(name: str) -> str:
    """Return a valid name of a setting for the name of an option. Dots separate groups of settings."""
    parts = [re.sub(r"[^A-Za-z0-9_]", "_", part).lstrip("_") or "option" for part in name.split(".")]
    parts = [f"option_{part}" if part[0].isdigit() else part for part in parts]
    return ".".join(f"{part}_" if reserved(part, top=n == 0) else part for n, part in enumerate(parts))


def reserved(part: str, top: bool) -> bool:
    """Return whether a setting, or a group of settings, cannot have this name."""
    fixed = (*GIVEN, *CommandConfig.setting_roles.given_elsewhere)
    return hasattr(CommandConfig, part) or (top and part in fixed and part not in ("seed", "device"))


def unlike(options: Sequence[Option]) -> list[Option]:
    """Rename options so that all names differ, and none is also the name of a group of settings."""
    taken, found = set[str](), list[Option]()
    groups = {option.name[:at] for option in options for at, c in enumerate(option.name) if c == "."}
    for option in options:
        name = option.name
        while name in taken or name in groups:
            name += "_"
        taken.add(name)
        found.append(option if name == option.name else replace(option, name=name, written=_renamed(option, name)))
    return found


def _renamed(option: Option, name: str) -> str:
    return re.sub(rf"\{{{re.escape(option.name)}(?=[:}}])", f"{{{name}", option.written)


def switch(name: str, first: str, second: str = "") -> str:
    """Return the placeholder of a true-or-false setting, which writes `first` if true and `second` if false."""
    return f"{{{name}:{first}|{second}}}" if second or not first else f"{{{name}:{first}}}"


def describe(kind: str, choices: Sequence[Any], about: Any) -> str:
    """Return the comment of an option: its type, its choices and its help."""
    one_of = f"one of {', '.join(map(str, choices))}" if choices else ""
    return ", ".join(filter(None, [kind, one_of, about if isinstance(about, str) else ""]))


def as_kind(value: Any, kind: str) -> Any:
    """Convert a literal default to the type int, float or text. Return UNKNOWN if this is not possible."""
    try:
        if kind == "int":
            number = int(value) if isinstance(value, str) else value
            return int(number) if not isinstance(number, bool) and number == int(number) else UNKNOWN
        if kind == "float":
            return UNKNOWN if isinstance(value, bool) else float(value)
    except (ValueError, TypeError, OverflowError):
        return UNKNOWN
    return value if isinstance(value, str) else UNKNOWN


def settle(options: Sequence[Option]) -> list[Option]:
    """Mark options as left out if TOML cannot represent their defaults. Required options are not marked."""
    found = []
    for option in options:
        value = list(option.value) if isinstance(option.value, tuple) else option.value
        option = replace(option, value=value)
        if not option.left_out and not option.required and not toml(value):
            option = option.without(
                "it has no default" if value is None else f"no setting can have its default, {value!r:.60}"
            )
        found.append(option)
    return found


Keywords = Mapping[str, ast.expr]
