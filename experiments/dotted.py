"""Settings by dotted name, such as {"model.d_k": 16}.

This module converts configurations, nested tables and the text of `--set` to this form and back.
"""

import contextlib
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from experiments.errors import UserError
from experiments.messages import show

Overrides = dict[str, Any]  # dotted name → value
LARGEST_INTEGER = (1 << 63) - 1  # largest integer of TOML and SQLite


def unstorable(value: Any) -> str:
    """Return the reason why a setting cannot have this value; "" if it can."""
    if isinstance(value, list | tuple | set | frozenset):
        return next(filter(None, map(unstorable, value)), "")
    if isinstance(value, float) and not math.isfinite(value):
        return "expected a finite number"  # identities are hashes of canonical JSON, which has only finite numbers
    if isinstance(value, int) and not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
        return f"an integer may be at most {LARGEST_INTEGER:,}"
    if isinstance(value, str) and ("\0" in value or value != value.encode(errors="replace").decode()):
        return "it contains a NUL or a character that is not Unicode"
    return ""


_PLAIN = {str, int, float, bool, list, type(None)}


def flatten(config: BaseModel | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted name and the value of every setting, such as ("model.d_model", 512). Values have JSON types."""
    values = config.model_dump(mode="json") if isinstance(config, BaseModel) else config
    for key, value in values.items():
        # For speed, check the exact types first, because a thousand runs have a hundred thousand settings.
        if type(value) is dict or (type(value) not in _PLAIN and isinstance(value, Mapping)):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@cache  # this function is called for every run of a plan
def defaults(kind: type[BaseModel]) -> Mapping[str, Any]:
    """Return the defaults of a type of configuration, by dotted name."""
    return MappingProxyType(dict(flatten(kind())))


def difference(config: BaseModel, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of `config`, by dotted name, that are missing or different in `theirs`."""
    return {key: value for key, value in flatten(config) if key not in theirs or theirs[key] != value}


def dotted(table: Any) -> Overrides:
    """Return nested or dotted settings by dotted name, in their order.

    `{model.d_k = 16}` and `{"model.d_k" = 16}` are the same setting.

    Raises ValueError if a setting is given twice, or if its value cannot be stored: nan, inf, an integer of more than
    64 bits, a text with NUL.
    """
    if not isinstance(table, Mapping):
        raise ValueError("expected a table of settings, such as {model.d_k = 16}")
    settings: Overrides = {}
    for name, value in flatten(table):
        if name in settings:
            raise ValueError(f"{name} is given twice")
        if why := unstorable(value):
            raise ValueError(f"{name} = {show(value)}: {why}")
        settings[name] = value
    return settings


def parse_set(items: Iterable[str]) -> Overrides:
    """Parse the values of `--set key=value`. Raises UserError.

    A value is read as TOML. If it is not valid TOML, it is text. The last value of a key is used.
    """
    settings: Overrides = {}
    for item in items:
        name, equals, text = item.partition("=")
        name = name.strip()
        if not equals or not name or not text.strip():
            raise UserError(f"--set {item.strip()}: write key=value, for example --set model.num_heads=4.")
        try:
            settings |= dotted({name: _parse_value(text.strip())})
        except ValueError as error:
            raise UserError(f"--set {item}: {error}.") from None
    return settings


def _parse_value(text: str) -> Any:
    try:
        parsed = tomllib.loads(f"v = {text}")
    except tomllib.TOMLDecodeError:
        return text
    except RecursionError:
        raise ValueError("its value is nested too deeply") from None
    except ValueError:  # Python refuses integers of more than 4,300 digits
        raise ValueError("its value has too many digits") from None
    return parsed["v"] if len(parsed) == 1 else text  # a text with a line break may contain further keys


def as_set(name: str, value: Any) -> str:
    """Return a setting in the form of `--set` (the inverse of `parse_set`). A shell may need quotes around it."""
    with contextlib.suppress(UserError):  # write a text without quotes if it is read back as the same text
        if isinstance(value, str) and parse_set([f"{name}={value}"]) == {name: value}:
            return f"{name}={value}"
    return f"{name}={toml(value)}"


def toml(value: Any) -> str:
    """Return a value as TOML. TOML and JSON write these values alike, except for the character U+007F."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return dotted settings as nested tables: {"model.d_k": 16} becomes {"model": {"d_k": 16}}."""
    table: dict[str, Any] = {}
    for name, value in settings.items():
        *path, last = name.split(".")
        node = table
        for part in path:
            node = node.setdefault(part, {})
        node[last] = value
    return table
