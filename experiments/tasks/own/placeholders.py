"""`{name}` in a command: the place of a setting's value. No value is ever read as shell code.

`{name:--flag}` is the place of a flag, for a setting that is true or false (`flag`).

A placeholder becomes the expansion of an environment variable ("${ABLATIONS_VALUE_0}"), whose value the shell does not
parse. Inside of quotes in the command it would end them, so a quoted placeholder is refused.
"""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.errors import UserError

_FLAG = r"-[^{}|\s]*"
# ${HOME} is the shell's
PLACEHOLDER = re.compile(rf"(?<!\$)\{{([A-Za-z_][\w.]*)(?::((?:{_FLAG})?\|{_FLAG}|{_FLAG}))?\}}")
_INSIDE = {"'": "single quotes", '"': "double quotes", "`": "backquotes", "\\": "a backslash", "<": "a here-document"}


def names(command: str) -> list[str]:
    """The settings that a command has a place for, in its order."""
    return [found[1] for found in PLACEHOLDER.finditer(command)]


def flags(command: str) -> dict[str, str]:
    """The settings that are written as flags, and their flags as the command has them."""
    return {found[1]: found[2] for found in PLACEHOLDER.finditer(command) if found[2] is not None}


def flag(name: str, written: str, value: Any) -> str:
    """What stands for a value that is true or false.

    `--flag`: that where it is true. `--no-flag`: that where it is false, unless the setting's own name begins with
    "no". `--yes|--no`: the first where it is true, the second where it is false; either may be left out.
    """
    first, bar, second = written.partition("|")
    negates = re.match("--?no[-_]", first) and not re.match("no(_|$)", name.rpartition(".")[2])
    if not bar and negates:
        first, second = "", first
    return first if value else second


def expanded(command: str, values: Mapping[str, Any]) -> str:
    """The command as a person would write it, for messages."""

    def text(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        value = values[found[1]]
        return flag(found[1], found[2], value) if found[2] is not None else shlex.quote(word(value))

    return PLACEHOLDER.sub(text, command)


def filled(command: str, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The command with placeholders as variables, and these variables; other braces stay."""
    variables: dict[str, str] = {}

    def variable(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        if found[2] is not None:
            return flag(found[1], found[2], values[found[1]])
        name = f"ABLATIONS_VALUE_{len(variables)}"
        variables[name] = word(values[found[1]])
        return f'"${{{name}}}"'

    return PLACEHOLDER.sub(variable, command), variables


def word(value: Any) -> str:
    """A setting as a word of the command."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | tuple) else str(value)


def refuse_quoted(command: str) -> None:
    """Raise UserError for a placeholder that the command quotes."""
    for name, place in _contexts(command):
        if place:
            raise UserError(
                f"The command has {{{name}}} inside {_INSIDE[place]}. A value is quoted for the shell where it is put "
                f"in, and quotes around it would undo that. Write {{{name}}} without quotes, also as a part of a word "
                f"(--name=run-{{{name}}}); for text with several values read {{settings}}, a JSON file. The command: "
                f"{command}"
            )


def _contexts(command: str) -> Iterator[tuple[str, str]]:
    """Every placeholder and its quotes, a key of _INSIDE; "" for none. Reads quotes like a POSIX shell."""
    open_: list[str] = []  # quotes and substitutions that have begun: ' " ` (
    document = False  # the lines after one with <<
    at = 0
    while at < len(command):
        character, inside = command[at], open_[-1] if open_ else ""
        found = PLACEHOLDER.match(command, at)
        if found:
            yield found[1], "`" if "`" in open_ else inside if inside in ("'", '"') else "<" * document
            at = found.end()
        elif inside == "'":
            at += 1
            if character == "'":
                open_.pop()
        elif character == "\\":
            escaped = PLACEHOLDER.match(command, at + 1)
            if escaped:
                yield escaped[1], "\\"
            at += 2
        elif character in "\"`'" and not (inside == '"' and character == "'"):
            at += 1
            if inside == character:
                open_.pop()
            else:
                open_.append(character)
        elif inside != '"' and character == "#" and (at == 0 or command[at - 1] in " \t\n;|&("):
            end = command.find("\n", at)
            at = len(command) if end < 0 else end
        else:
            if command.startswith("$(", at) or (character == "(" and inside != '"'):
                open_.append("(")
                at += character == "$"
            elif character == ")" and inside == "(":
                open_.pop()
            document = document or _begins_document(command, at)
            at += 1


def _begins_document(command: str, at: int) -> bool:
    """Whether a here-document (<<EOF, not <<<text) begins on the line that ends here."""
    return command[at] == "\n" and re.search(r"(?<!<)<<(?!<)", command[command.rfind("\n", 0, at) + 1 : at]) is not None
