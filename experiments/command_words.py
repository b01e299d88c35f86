"""The words of a trainer's command: places of settings, options that pass them, and words that no setting changes.

`{name}` is the place of a setting's value. `{name:--flag}` is the place of a flag, for a setting that is true or false.
`{settings.yaml:FILE}` is the place of FILE with the settings laid over it. Reads text, runs nothing.
"""

import re
from functools import cache

_FLAG = r"-[^{}|\s]*"
# ${HOME} is the shell's
_FILE = r"(?<=\{settings\.yaml:)[^-{}|][^{}|]*"
PLACEHOLDER = re.compile(rf"(?<!\$)\{{([A-Za-z_][\w.]*)(?::(?:((?:{_FLAG})?\|{_FLAG}|{_FLAG})|({_FILE})))?\}}")
QUOTED = r"\\[\s\S]|'[^']*'|\"(?:\\[\s\S]|[^\"\\])*\""  # escaped or quoted
# A comment, a word, or else a blank, an operator, or a quote that does not end.
TOKEN = re.compile(rf"(?<![^\s;|&()])#.*|((?:{QUOTED}|[^\s\\'\"`;|&()<>])+)|[\s\S]")
PYTHON = re.compile(r"(\S*/)?(python|pypy)[\d.]*")
_OUTSIDE = ("folder", "metrics", "device", "threads")  # placeholders that change no number: places, and the device


def names(command: str) -> list[str]:
    """The settings that a command has a place for, in its order."""
    return [placeholder[1] for placeholder in PLACEHOLDER.finditer(command)]


def parts_of_command(command: str) -> tuple[str, dict[str, str]]:
    """The words of a command that no setting changes, and for each setting the option that passes it.

    An option is `--lr {lr}`, `lr={lr}` or a flag `{bn:--bn}`. Other words with placeholders are among the fixed ones,
    because their order counts; so is {seed}. The Python interpreter and the places of outputs are in neither.
    """
    fixed, passed = list[str](), dict[str, str]()
    places = [place[0] for place in PLACEHOLDER.finditer(command)]
    marks = iter(range(len(places)))  # a placeholder may have a bar, which is an operator elsewhere
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
    """The parts of a command as they are compared between runs, by name; {} without a command.

    `command`: its fixed words, which name a run. `command {lr}`: how it passes the setting lr. An option for a new
    setting leaves the fixed words and the other settings as they are. So a run that was trained before stays the same.
    """
    if not command:
        return {}
    fixed, passed = parts_of_command(command)
    return {"command": fixed, **{f"command {{{name}}}": form for name, form in passed.items()}}
