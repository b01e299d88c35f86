"""Collect the options of a script from all supported libraries, and find their places in its command."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from ablations.service.from_script import click_options, fields
from ablations.service.from_script.argparse_options import Parsers
from ablations.service.from_script.argparse_options import options_of as of_parser
from ablations.service.from_script.config_files import hydra_options, yaml_options
from ablations.service.from_script.option import (
    SEEDS,
    UNKNOWN,
    Option,
    Options,
    as_kind,
    computed,
    describe,
    keywords,
    literal,
    name_of,
    setting_name,
    settle,
    switch,
    text_of,
    unlike,
)
from ablations.service.from_script.reach import Code
from experiments.errors import UserError

_ABSL = {"DEFINE_integer": "int", "DEFINE_float": "float", "DEFINE_string": "str", "DEFINE_enum": "str",
         "DEFINE_bool": "bool", "DEFINE_boolean": "bool"}  # fmt: skip
_CONFIG = re.compile(r"^-c$|conf|cfg|(^|[-_])(opts?|args|h?params)$", re.IGNORECASE)
_COMMANDS_OF_LIGHTNING = ["fit", "validate", "test", "predict"]


def options_in(code: Code, words: Sequence[str], start: int, folder: Path) -> Options:
    """Return the options of a script that its command does not give.

    words: the words of the command. start: the index of the script in `words`. Raises UserError if the command lacks a
    subcommand or a required value.
    """
    given = list(words[start + 1 :])
    found, named, remarks = _found(code, given)
    file = _yaml_word(words, folder)
    if not file and (config := _config_word(given, folder)):
        found = [option.without(f"{config} in the command may set it") for option in found]
    if file:
        alone = [option for option in found if option.name in (*SEEDS, "device") and not option.positional]
        place = next(n for n, word in enumerate(words) if word.endswith(file))
        head = words[place].removesuffix(file)
        words = [*words[:place], f"{head}{{settings.yaml:{file}}}", *words[place + 1 :]]
        found = [*yaml_options(folder / file, file), *alone]
    found = unlike(settle(found))
    cuts, place = list[int](), start + 1
    for name in named:
        place = next((n for n in range(place, len(words)) if words[n] == name), place)
        cuts.append(place)
        place += 1
    left = _without_given(found, given, named, words)
    return Options(left, words, cuts, remarks)


def _found(code: Code, given: Sequence[str]) -> tuple[list[Option], list[str], list[str]]:
    """Return the options, the subcommands that the command names, and remarks."""
    remarks = list[str]()
    hydra, about = hydra_options(code, given)
    remarks += about
    if hydra:
        return hydra, [], remarks
    commands, named, choices = click_options.chosen(code, given)
    if choices:
        raise UserError(_choose(choices))
    if commands:
        return list(_levelled(commands, named)), named, remarks
    roots = list(fields.roots(code))
    found = [option for root in roots for option in fields.options_of(root, code)]
    remarks += fields.unread(roots)
    if any(root.prefix for root in roots):
        command = next((word for word in given if word in _COMMANDS_OF_LIGHTNING), "")
        if not command:
            raise UserError(_choose(_COMMANDS_OF_LIGHTNING))
        return [replace(option, level=1) for option in found], [command], remarks
    parsers = Parsers(code)
    levels, named, choices = parsers.chosen(given)
    if choices:
        raise UserError(_choose(choices))
    own = [option for parser in levels for option in of_parser(parser, _level(parser.names, named), code)]
    return [*found, *own, *_absl(code)], named, [*remarks, *parsers.remarks]


def _level(names: Sequence[str], named: Sequence[str]) -> int:
    return next((n + 1 for n, name in enumerate(named) if name in names), 0)


def _levelled(commands: Sequence[click_options.Command], named: Sequence[str]) -> Iterator[Option]:
    """Yield the options of each command, with the number of subcommands before them as their level."""
    for command in commands:
        yield from click_options.options_of(command, _level(command.names, named))


def _choose(choices: Sequence[str]) -> str:
    return (
        f"The script has the subcommands {', '.join(choices)}, and each has different options. Name one in the "
        f'command: --from "python train.py {choices[0]}".'
    )


def _absl(code: Code) -> Iterator[Option]:
    """Yield the flags of absl as options."""
    for at, call in code.calls():
        kind = _ABSL.get(name_of(call))
        if not name_of(call).startswith("DEFINE_") or not call.args or not text_of(call.args[0]):
            continue
        words, given = keywords(call), [*call.args[1:], None, None, None]
        flag = text_of(call.args[0])
        default = words.get("default", given[0])
        choices = literal(words.get("enum_values", given[1] if name_of(call) == "DEFINE_enum" else None), ())
        help_ = literal(words.get("help", given[2 if name_of(call) == "DEFINE_enum" else 1]))
        choices = tuple(choices) if isinstance(choices, list | tuple) else ()
        option = Option(setting_name(flag), (f"--{flag}",), None, describe(kind or "", choices, help_), choices)
        value = literal(default)
        if kind is None:
            yield option.without(f"the result of {name_of(call)} is not known without running it")
        elif at.conditional:
            yield option.without("the script adds it only under a condition")
        elif option.name in SEEDS:
            yield option
        elif value is UNKNOWN:
            yield option.without(computed(default))
        elif value is None:
            yield option
        elif kind == "bool" and isinstance(value, bool):
            option = replace(option, flags=(f"--{flag}", f"--no{flag}"), takes_value=False)
            yield replace(option, value=value, written=switch(option.name, f"--{flag}", f"--no{flag}"))
        elif (number := as_kind(value, kind)) is not UNKNOWN and kind != "bool":
            yield replace(option, value=number)
        else:
            yield option.without(f"its default {value!r} is no {kind}")


def _yaml_word(words: Sequence[str], folder: Path) -> str:
    """Return the YAML file in the command, as written there; "" if there is none."""
    for word in words:
        for text in (word, word.partition("=")[2]):
            if text.endswith((".yaml", ".yml")) and (folder / text).is_file():
                return text
    return ""


def _config_word(given: Sequence[str], folder: Path) -> str:
    """Return the word of the command that names a configuration file; "" if there is none.

    The file may set the script's options, so these options do not become settings.
    """
    for before, word in zip(["", *given], given, strict=False):
        key, _, text = word.partition("=") if word.startswith("-") else (before, "", word)
        if word.startswith("@") or (_CONFIG.search(key) and Path(text).suffix and (folder / text).is_file()):
            return word
    return ""


def _abbreviated(key: str, flags: Mapping[str, Option]) -> Option | None:
    """Return the only option whose flag begins with `key`, because argparse accepts abbreviations; else None."""
    found = {option.name: option for flag, option in flags.items() if flag.startswith(key)}
    return next(iter(found.values())) if key.startswith("--") and len(key) > 2 and len(found) == 1 else None


def _without_given(
    options: Sequence[Option], given: Sequence[str], named: Sequence[str], words: Sequence[str]
) -> list[Option]:
    """Return the options that the command does not give. Raises UserError if one of them is required."""
    flags = {flag: option for option in options for flag in option.flags if flag.startswith("-")}
    taken, values, place = set[str](), 0, 0
    while place < len(given):
        word = given[place]
        key = word.partition("=")[0].lstrip("+~")
        option = flags.get(key) or _abbreviated(key, flags) or flags.get(word[:2] if not word.startswith("--") else "")
        changes = "=" in word or word.startswith("~")  # whether the word is an override of Hydra
        option = option or next((o for o in options if not o.flag.startswith("-") and o.flag == key and changes), None)
        if option is not None:
            taken.add(option.name)
            short = word in option.flags or word.startswith("--")
            alone = option.takes_value and "=" not in word and short
            place += 1 + alone
            continue
        opposite = next((o for o in options if word in o.written.rstrip("}").replace(":", "|").split("|")), None)
        if opposite is not None and word.startswith("-"):
            taken.add(opposite.name)
        elif not word.startswith("-") and word not in named:
            values += 1
        place += 1
    left = [option for option in options if option.name not in taken]
    for option in [option for option in left if option.positional and (option.required or option.left_out)][:values]:
        left.remove(option)
    lacking = [option.flag for option in left if option.required and option.name not in SEEDS]
    if lacking:
        first = next(option for option in left if option.flag == lacking[0])
        example = " ".join([*words, *([] if first.positional else [f"{first.flag}{'=' * ('=' in first.written)}"])])
        raise UserError(
            f'The script requires {", ".join(lacking)}. Give the value in the command: --from "{example} …".'
        )
    return left
