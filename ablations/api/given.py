"""Arguments of Python's functions in the form of the command's options, so that both select and check the same way."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from ablations.service.selected import Selectors
from ablations.service.table_options import TableOptions
from ablations.study.messages import show, suggestion
from ablations.study.overrides import dotted, parse_set
from experiments.errors import UserError

Settings = Mapping[str, Any] | Iterable[str] | None  # {"model.num_heads": 4}, or ["model.num_heads=4"]
Names = str | Iterable[str] | None  # "base,A", or ["base", "A"]


def selectors(
    store: str | Path,
    state_dir: str | Path | None,
    profile: str | None,
    corpus: str | Path | None,
    rows: Names,
    seeds: int | None,
    set_: Settings,
) -> Selectors:
    """The selectors of the command. Raises UserError for a value that no option can have."""
    if seeds is not None and (isinstance(seeds, bool) or not isinstance(seeds, int)):
        raise UserError(f"seeds={seeds!r}: it must be an integer, the number of seeds of every row.")
    return Selectors(
        store=Path(store),
        state_dir=None if state_dir is None else Path(state_dir),
        profile=profile,
        corpus=None if corpus is None else str(corpus),
        rows=_joined(rows),
        seeds=seeds,
        sets=_settings(set_),
    )


def _joined(names: Names) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(map(str, names))


def _settings(given: Settings) -> list[str] | None:
    if given is None:
        return None
    if isinstance(given, str):
        return [given]
    if not isinstance(given, Mapping):
        return list(given)
    try:
        return [_assignment(name, value) for name, value in dotted(given).items()]
    except ValueError as error:
        raise UserError(f"set={show(dict(given))}: {error}.") from None


def _assignment(name: str, value: Any) -> str:
    """The setting as --set has it: a bare word where that means the same, else TOML."""
    bare = f"{name}={value}"
    try:
        if not isinstance(value, bool) and parse_set([bare]) == {name: value}:
            return bare
    except UserError:
        pass
    return f"{name}={json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)}"


def printing(choices: Mapping[str, Any]) -> TableOptions:
    """columns, hide, plain, digits … as `ablations report` has them; lists and dicts may stand for "a,b" and "a=1"."""
    known = [field.name for field in fields(TableOptions)]
    for name in choices:
        if name not in known:
            raise UserError(f"There is no argument {name}. {suggestion(name, known, 'choices of printing')}")
    return TableOptions(**{name: _as_option(value) for name, value in choices.items()})


def _as_option(value: Any) -> Any:
    if isinstance(value, Mapping):
        return ",".join(f"{name}={given}" for name, given in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if value is None or isinstance(value, bool) else str(value)
