"""Fill the values of settings into a command (experiments/command_words.py).

No value is parsed as shell code, because a placeholder is replaced by an environment variable in quotes, such as
"${ABLATIONS_VALUE_0}". The shell does not parse the value of a variable. These quotes would end quotes around a
placeholder, so a quoted placeholder is refused.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from experiments.command_words import PLACEHOLDER
from experiments.errors import UserError

_INSIDE = {"'": "single quotes", '"': "double quotes", "`": "backquotes", "\\": "a backslash", "<": "a here-document"}


def flags(command: str) -> dict[str, str]:
    """Return a dict from settings to the flags in the command's placeholders, such as {"bn": "--no-bn"}."""
    return {
        placeholder[1]: placeholder[2] for placeholder in PLACEHOLDER.finditer(command) if placeholder[2] is not None
    }


def laid_over(command: str) -> str:
    """Return FILE of the placeholder `{settings.yaml:FILE}`; "" if the command has no such placeholder."""
    return next((place[3] for place in PLACEHOLDER.finditer(command) if place[3]), "")


def flag(name: str, written: str, value: Any) -> str:
    """Return the flag that is passed for a value that is true or false; "" if no flag is passed.

    written: the flag in the placeholder. `--flag` is passed if the value is true. `--no-flag` is passed if the value is
        false. A setting with the name `no` or `no_…` is an exception: `--no-flag` is passed if its value is true. For
        `--yes|--no`, the first flag is passed if the value is true, and the second one if it is false. Either of them
        may be empty.
    """
    first, bar, second = written.partition("|")
    negates = re.match("--?no[-_]", first) and not re.match("no(_|$)", name.rpartition(".")[2])
    if not bar and negates:
        first, second = "", first
    return first if value else second


def expanded(command: str, values: Mapping[str, Any]) -> str:
    """Return the command with the values of settings, for messages."""
    return _put_in(command, values, shlex.quote)


def filled(command: str, values: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """Return the command with placeholders replaced by environment variables, and these variables.

    Other braces in the command are not changed.
    """
    variables: dict[str, str] = {}

    def variable(value: str) -> str:
        name = f"ABLATIONS_VALUE_{len(variables)}"
        variables[name] = value
        return f'"${{{name}}}"'

    return _put_in(command, values, variable), variables


def _put_in(command: str, values: Mapping[str, Any], written: Callable[[str], str]) -> str:
    """Replace the placeholders of a command. Placeholders without a value are not changed.

    written: function from the text of a value to the text that replaces its placeholder. Flags are inserted directly.
    """

    def value_of(place: re.Match[str]) -> str:
        if place[1] not in values:
            return place[0]
        value = values[place[1]]
        return written(word(value)) if place[2] is None else flag(place[1], place[2], value)

    return PLACEHOLDER.sub(value_of, command)


def word(value: Any) -> str:
    """Return the value of a setting as an argument of the command."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value) if isinstance(value, list | tuple) else str(value)


def refuse_quoted(command: str) -> None:
    """Raise UserError if a placeholder is inside quotes."""
    for name, place in _contexts(command):
        if place:
            raise UserError(
                f"The command has {{{name}}} inside {_INSIDE[place]}. The program quotes values for the shell, and "
                f"quotes around them would undo this. Write {{{name}}} without quotes, also as a part of a word "
                f"(--name=run-{{{name}}}); for text with several values read {{settings}}, a JSON file. The command: "
                f"{command}"
            )


def _contexts(command: str) -> Iterator[tuple[str, str]]:
    """Yield every placeholder with the quotes around it: a key of _INSIDE, or "" for none.

    Quotes are read as a POSIX shell reads them.
    """
    open_: list[str] = []  # open quotes and substitutions: ' " ` (
    document = False  # whether a here-document has begun
    at = 0
    while at < len(command):
        character, inside = command[at], open_[-1] if open_ else ""
        placeholder = PLACEHOLDER.match(command, at)
        if placeholder:
            yield placeholder[1], "`" if "`" in open_ else inside if inside in ("'", '"') else "<" * document
            at = placeholder.end()
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
    """Return whether position `at` ends a line with a here-document (<<EOF, but not <<<text)."""
    return command[at] == "\n" and re.search(r"(?<!<)<<(?!<)", command[command.rfind("\n", 0, at) + 1 : at]) is not None
