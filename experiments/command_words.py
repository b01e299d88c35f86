"""Parse the command of a trainer: its placeholders for settings, its options, and the words that no setting changes.

The placeholder `{name}` stands for the value of a setting. `{name:--flag}` stands for a flag and belongs to a setting
that is true or false. `{settings.yaml:FILE}` stands for a copy of FILE in which the run's settings replace the values.
This module only reads text and runs nothing.
"""

import re
from functools import cache

_FLAG = r"-[^{}|\s]*"
_FILE = r"(?<=\{settings\.yaml:)[^-{}|][^{}|]*"
# A variable of the shell, such as ${HOME}, is not a placeholder.
PLACEHOLDER = re.compile(rf"(?<!\$)\{{([A-Za-z_][\w.]*)(?::(?:((?:{_FLAG})?\|{_FLAG}|{_FLAG})|({_FILE})))?\}}")
QUOTED = r"\\[\s\S]|'[^']*'|\"(?:\\[\s\S]|[^\"\\])*\""  # escaped or quoted text
# A token is a comment, a word (group 1), or one other character: a blank, an operator, or a quote without an end.
TOKEN = re.compile(rf"(?<![^\s;|&()])#.*|((?:{QUOTED}|[^\s\\'\"`;|&()<>])+)|[\s\S]")
PYTHON = re.compile(r"(\S*/)?(python|pypy)[\d.]*")
# Placeholders for output files and devices, which are not settings.
_OUTSIDE = ("folder", "metrics", "device", "threads")


def names(command: str) -> list[str]:
    """Return the names of a command's placeholders, in their order."""
    return [placeholder[1] for placeholder in PLACEHOLDER.finditer(command)]


def parts_of_command(command: str) -> tuple[str, dict[str, str]]:
    """Return the fixed words of a command, and a mapping from each setting to the option that passes it.

    An option is `--lr {lr}`, `lr={lr}` or a flag `{bn:--bn}`. Other words with placeholders belong to the fixed words,
    because their order matters. `{seed}` also belongs to the fixed words. The Python interpreter and the options for
    output files and devices are in neither of the two results.
    """
    fixed, passed = list[str](), dict[str, str]()
    places = [place[0] for place in PLACEHOLDER.finditer(command)]
    marks = iter(range(len(places)))  # replace placeholders by numbers: their "|" would count as an operator
    for token in TOKEN.finditer(PLACEHOLDER.sub(lambda place: f"\0{next(marks)}\0", command)):
        if token[1] is None:
            if not token[0].isspace():
                fixed.append(token[0])
            continue
        text = re.sub("\0([0-9]+)\0", lambda mark: places[int(mark[1])], token[1])
        used = names(text)
        alone = PLACEHOLDER.fullmatch(text)
        before = fixed[-1] if fixed and alone and alone[2] is None and re.fullmatch("--?[^{}=]+", fixed[-1]) else ""
        option = before or (alone and alone[2] is not None) or re.match(r"[-+~\w.]+=", text)
        if not used or not option or "seed" in used or "settings" in used or "settings.yaml" in used:
            if not PYTHON.fullmatch(text):
                fixed.append(text)
            continue
        if before:
            fixed.pop()
        form = f"{before} {text}".strip()
        passed |= {name: f"{passed[name]} {form}" if name in passed else form for name in used if name not in _OUTSIDE}
    return " ".join(fixed), passed


@cache
def compared_words(command: str) -> dict[str, str]:
    """Return the parts of a command that are compared between runs, by name; {} without a command.

    The entry "command" has the fixed words, which are part of run_id. The entry "command {lr}" has the option that
    passes the setting lr. An option for a new setting changes no other entry. A run that was trained without this
    option therefore keeps its identity.
    """
    if not command:
        return {}
    fixed, passed = parts_of_command(command)
    return {"command": fixed, **{f"command {{{name}}}": form for name, form in passed.items()}}
