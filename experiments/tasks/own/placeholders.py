"""`{name}` in a command: the place of a setting's value. No value is ever read as shell code.

A placeholder becomes the expansion of an environment variable ("${ABLATIONS_VALUE_0}"), whose value the shell does not
parse. Inside of quotes in the command it would end them, so a quoted placeholder is refused.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from experiments.errors import UserError

PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_][\w.]*)\}")  # ${HOME} is the shell's
_INSIDE = {"'": "single quotes", '"': "double quotes", "`": "backquotes", "\\": "a backslash", "<": "a here-document"}


def filled(command: str, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The command with placeholders as variables, and these variables; other braces stay."""
    variables: dict[str, str] = {}

    def variable(found: re.Match[str]) -> str:
        if found[1] not in values:
            return found[0]
        name = f"ABLATIONS_VALUE_{len(variables)}"
        variables[name] = _word(values[found[1]])
        return f'"${{{name}}}"'

    return PLACEHOLDER.sub(variable, command), variables


def _word(value: Any) -> str:
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
