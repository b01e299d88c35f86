"""A study file for runs that were trained elsewhere, where there is none yet: its rows, settings and metrics."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ablations.service.foreign import NOTHING, Arrived, Place, as_key
from experiments.errors import UserError

LOWER = re.compile(
    r"(^|[_.])(loss|perplexity|ppl|nll|error|err|wer|cer|mse|mae|rmse|bpc|bpb|fid)($|[_.])", re.IGNORECASE
)
_NAME = re.compile(r"[A-Za-z_][\w-]*(\.[A-Za-z_][\w-]*)*")


def study_text(name: str, source: str, arrived: Sequence[Arrived], places: Mapping[str, Place]) -> str:
    """The file. The first row is the one that changes are from. Raises UserError for a name that TOML cannot have."""
    first: dict[str, Arrived] = {}  # of each row, in their order
    for one in arrived:
        first.setdefault(one.row, one)
    names = dict.fromkeys(name for one in first.values() for name in one.settings)
    varying = [n for n in names if len({repr(one.settings.get(n)) for one in first.values()}) > 1]
    base = next(iter(first))
    seeds = {row: sum(one.row == row for one in arrived) for row in first}
    known = {n: next(v for one in first.values() if (v := one.settings.get(n)) is not None) for n in names}
    head = [f"name = {_text(name)}", f"title = {_text(f'Runs of {source}')}", 'task = "imported"', ""]
    settings = [f"{_setting(n)} = {_value(first[base].settings.get(n, _unset(known[n])))}" for n in names]
    parts = [*head, *(["[base]", *settings, ""] if settings else [])]
    for set_, metric in dict.fromkeys(places.values()):
        better = "lower" if LOWER.search(metric) else "higher"
        parts += ["[[metric]]", f"name = {_text(metric)}", f"set = {_text(set_)}", f'better = "{better}"', ""]
    for row, one in first.items():
        parts += ["[[variation]]", f"key = {_text(row)}", "imported = true"]
        parts += [f"group = {_text(as_key(one.run.group))}"] if one.run.group else []
        parts += [f"seeds = {seeds[row]}"] if seeds[row] > 1 else []
        changed = {n: one.settings.get(n, _unset(known[n])) for n in varying}
        changed = {n: v for n, v in changed.items() if v != first[base].settings.get(n, _unset(known[n]))}
        inner = ", ".join(f"{_setting(n)} = {_value(v)}" for n, v in changed.items())
        parts += [f"set = {{{inner}}}", ""] if inner else [""]
    return "\n".join(parts).rstrip() + "\n"


def _unset(like: Any) -> Any:
    """What stands for a setting that a run does not have: of the same kind as others have it."""
    return (
        False
        if isinstance(like, bool)
        else 0
        if isinstance(like, int | float)
        else []
        if isinstance(like, list)
        else ""
    )


def setting_name(name: str) -> str:
    """Their name of a setting as a study has it: signs other than letters, digits, . _ - become underscores."""
    return re.sub(r"[^\w.-]", "_", name)


def _setting(name: str) -> str:
    clean = setting_name(name)
    if not _NAME.fullmatch(clean) or not clean.isascii():
        raise UserError(f"The setting {name!r} cannot stand in a study: choose others with --settings A,B. {NOTHING}")
    return clean


def _value(given: Any) -> str:
    if isinstance(given, float) and not math.isfinite(given):
        raise UserError(f"A setting is {given}: choose others with --settings A,B. {NOTHING}")
    return json.dumps(given, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML refuses this one, JSON does not


def _text(words: str) -> str:
    return json.dumps("".join(c for c in words if c.isprintable()), ensure_ascii=False)
