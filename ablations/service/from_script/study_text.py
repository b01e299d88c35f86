"""The text of a study for a script: its command, settings, metrics and example rows."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from ablations.service.from_script.distinct import WORD, Printed
from ablations.service.from_script.metrics import NUMBER, progress
from ablations.service.from_script.option import SEEDS, Option, Options, one_line, toml
from ablations.service.from_script.reach import Code
from experiments.tasks.direction import direction

_NO_FACTOR = re.compile(r"path|dir|file|log|print|verb|worker|port|save|epoch|step|iter|batch|interval|debug|resume")
_FACTOR = re.compile(r"drop|lr|rate|hidden|width|dim|layer|depth|momentum|decay|channel|head")
_EXAMPLES = 2
_NO_METRIC = f"""
# Nothing that the script prints looks like a metric. Write the metric's name and the pattern that finds its number,
# or let the script end with a line of JSON that has this name.
[[metric]]
name = "accuracy"
# pattern = 'accuracy: {NUMBER}'"""
_NO_CERTAIN_METRIC = f"""
# The numbers that the script prints are comments below, because none of them is certain. Use one of them, or write the
# metric's name and the pattern that finds its number, in place of this entry.
[[metric]]
name = "accuracy"
# pattern = 'accuracy: {NUMBER}'"""


def study_text(
    name: str,
    found: Options,
    code: Code,
    metrics: Sequence[Printed],
    links: Sequence[str],
    remarks: Sequence[str],
) -> str:
    lines = [
        f'name = "{name}"',
        f'title = "Ablation of {name}"',
        f"command = {toml(command_of(found))}",
    ]
    if links:
        lines.append(f"links = {toml(links)}   # each run has its own folder, with links to these")
    lines += [f"progress = '{pattern}'" for pattern in [*progress(code)][-1:]]
    seeded = any(_given(option) == "{seed}" or (option.in_file and option.name == "seed") for option in found.options)
    repeats = "seeds = 1   # the script has no option for a seed, so more seeds would repeat one training"
    lines.append("seeds = 2" if seeded else repeats)
    notes = [f"# {one_line(remark)}" for remark in remarks]
    settings = [option for option in found.options if is_setting(option)]
    return "\n".join([*lines, "", "[base]", *notes, *_base(found), *_metrics(metrics), *_rows(settings), ""])


def is_setting(option: Option) -> bool:
    """Return whether the option becomes a setting of [base]."""
    return not (option.left_out or _given(option) or (option.in_file and option.name == "seed"))


def _given(option: Option) -> str:
    """Return the placeholder for an option that the run sets: {seed} or {device}; "" for every other option."""
    if option.in_file:
        return ""
    return "{seed}" if option.name in SEEDS else "{device}" if _takes_device(option) else ""


def command_of(found: Options) -> str:
    """Return the command with a placeholder for each setting, after the subcommand to which the setting belongs."""
    places: list[list[str]] = [[] for _ in range(len(found.cuts) + 1)]
    for option in found.options:
        place = places[min(option.level, len(found.cuts))]
        if given := _given(option):
            place.append(f"{option.flag}={given}" if "=" in option.written else f"{option.flag} {given}")
        elif is_setting(option) and not option.in_file:
            # a value that begins with a dash looks like an option
            equals = option.flag.startswith("--") and str(option.value).startswith("-")
            place.append(option.written or f"{option.flag}{'=' if equals else ' '}{{{option.name}}}")
    words = [word if "{settings.yaml" in word else shlex.quote(word) for word in found.words]
    for cut, given_there in reversed([*zip([*found.cuts, len(words)], places, strict=True)]):
        words[cut:cut] = given_there
    return " ".join(words)


def _base(found: Options) -> Iterator[str]:
    """Yield the lines of [base]: settings with their defaults, and other options as comments with the reason."""
    for option in found.options:
        about = f"   # {one_line(f'{option.flag}: {option.about}')}".rstrip(": ")
        if is_setting(option):
            yield f"{option.name} = {toml(option.value)}{about}"
        elif option.left_out and not _given(option):
            yield f"# {option.name}: {one_line(option.left_out)}{about}"


def _takes_device(option: Option) -> bool:
    """Return whether the option takes the name of a device, such as cpu or cuda."""
    names = {str(choice) for choice in option.choices}
    text = option.value is None or isinstance(option.value, str)
    return option.name == "device" and text and option.takes_value and (not names or {"cpu", "cuda"} <= names)


def _metrics(found: Sequence[Printed]) -> Iterator[str]:
    """Yield the [[metric]] entries of the printed numbers: first for test sets, then for dev, then for train.

    At most the first two entries are columns. The others are comments. A number of the training set is a column only if
    it is the first entry. A number with a doubt is always a comment, which contains the doubt.
    """
    lines = list(dict.fromkeys(one.line for one in found))
    order = sorted(
        found, key=lambda one: (("test", "dev", "train").index(one.set), not one.certain, -lines.index(one.line))
    )
    every = [one for one in order if not one.doubt]
    if not found:
        yield _NO_METRIC
    elif not every:
        yield _NO_CERTAIN_METRIC
    for place, one in enumerate(every):
        yield _metric(one, comment=place > 1 or bool(place and one.set == "train"))
    yield from (_metric(one, comment=True) for one in order if one.doubt)


def _metric(one: Printed, comment: bool) -> str:
    """Return a [[metric]] entry with the source line from which it is guessed."""
    entry = ["[[metric]]", f"name = {json.dumps(one.name)}", f"set = {json.dumps(one.set)}"]
    if better := direction(one.name):
        entry.append(f'better = "{better}"')
    entry += [f"digits = {one.digits}"] if one.digits > 2 else []
    found_by = f"pattern = '{one.pattern}'   # the last number that it finds; take = \"best\" for the best"
    entry += [found_by] if one.pattern else []
    source = [f"# guessed from {one_line(one.line)}"] if one.line else []
    if one.doubt:
        source.append(f"# {one_line(one.doubt)}, then remove the # of these lines:")
        if WORD in one.pattern:
            entry[2] += "   # or another of test, dev, train"
    begin = "# " if comment else ""
    return "\n" + "\n".join([*source, *(f"{begin}{line}" for line in entry)])


def _rows(settings: Sequence[Option]) -> Iterator[str]:
    """Yield the row base, and at most two example rows that change one setting each."""
    yield '\n[[variation]]\nkey = "base"'

    def rank(option: Option) -> int:
        return 0 if _FACTOR.search(option.name) else 1 if isinstance(option.value, bool) else 2

    ranked = sorted((option for option in settings if not _NO_FACTOR.search(option.name)), key=rank)
    others = [(option, other) for option in ranked if (other := _other(option)) is not None]
    for option, other in others[:_EXAMPLES]:
        key = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{option.name}-{str(other).lower()}").lstrip("-._")
        row = f"key = {json.dumps(key)}\nset = {{{option.name} = {toml(other)}}}"
        yield f"\n[[variation]]   # an example: change it\n{row}"


def _other(option: Option) -> Any:
    """Return another value of a setting for an example; None if no other valid value is known."""
    value = option.value
    if isinstance(value, bool):
        return not value
    if option.choices:
        return next((choice for choice in option.choices if choice != value and toml(choice)), None)
    if isinstance(value, int):
        return value // 2 if value > 1 else value + 1
    return (value / 2 or 0.1) if isinstance(value, float) else None
