"""Settings in words: those that vary, under the study's heads, and those that a reader could not guess."""

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from experiments.config.network_change import all_settings
from experiments.config.task_config import TaskConfig
from experiments.dotted import defaults, flatten
from reports.results.table import Row
from reports.spec.table_spec import RowSpec, TableRun

Settings = Mapping[str, Any]


def changes(row: RowSpec, base: RowSpec | None) -> dict[str, Any]:
    """Return the settings in which a row's runs differ from the base row's; without a base, what the row changes."""
    if base is None:
        return dict(row.overrides)
    reference = _printable(base, base.runs[0])
    return {n: v for n, v in _printable(row, row.runs[0]).items() if v != reference.get(n)}


def shown(row: Row, base: Row | None, names: Collection[str]) -> dict[str, Any]:
    """Return the values that a row shows: the named settings and its own changes, if it reads them.

    The base row shows every one; another row's blank cell means "as in base", which must read the setting too.
    """
    if base is None:
        return at(row, row.settings)
    own = at(row, dict.fromkeys([*names, *row.settings]))
    return {n: v for n, v in own.items() if row.key == base.key or n in row.settings or not base.reads(n)}


def at(row: Row, names: Collection[str]) -> dict[str, Any]:
    """A row's own values of some settings, among those that it reads."""
    settings = _printable(row.spec, row.outcomes[0].run)
    return {name: settings[name] for name in names if name in settings and row.reads(name)}


def here(row: Row) -> str:
    """Return the actual value of a size in the row's key, "8 → 4" for C-N8; "" if the key's value is used."""
    declared = row.spec.declared
    actual = at(row, declared)
    said = {*re.findall(r"\d+(?:\.\d+)?", row.key)}
    scaled = [(value, actual[name]) for name, value in declared.items() if str(value) in said and name in actual]
    return ", ".join(dict.fromkeys(f"{old} → {new}" for old, new in scaled if new != old))


def between(row: Row, other: Row) -> dict[str, Any]:
    """The settings of `row` that `other` has otherwise."""
    theirs = _printable(other.spec, other.outcomes[0].run)
    own = at(row, _printable(row.spec, row.outcomes[0].run))
    return {name: value for name, value in own.items() if value != theirs.get(name)}


def _printable(row: RowSpec, run: TableRun) -> dict[str, Any]:
    """The settings of a row's run, and the row's values beside them, by name."""
    return {
        **{name: value for name, value in all_settings(run.config).items() if name not in ("seed", "task")},
        **row.facts,
    }


def columns(
    rows: Sequence[tuple[str, Settings]], heads: Mapping[str, str], named: Sequence[str], tuned: Sequence[str] = ()
) -> dict[str, str]:
    """Setting → head. `rows` are (label, settings) of all rows but base, `heads` the study's.

    `named`: the study's own [columns]; if there are some, these alone, and what tuning found. Otherwise what varies:
    without a setting that only rows with a label change, because words say it.
    """
    varying = dict.fromkeys(name for _, settings in rows for name in settings)
    unsaid = {name for label, settings in rows if not label for name in settings}
    found = [name for name in tuned if name in unsaid]
    printed = [*named, *found] if named else [name for name in {**heads, **varying} if name in unsaid]
    return {name: heads.get(name, name.rpartition(".")[2]) for name in dict.fromkeys(printed)}


def on_corpus(rows: Sequence[Row], names: Collection[str]) -> bool:
    """Return whether every row is trained on a corpus folder of one of these names; also if there are no names."""
    found = {PurePath(str(o.setting("data.corpus") or "")).name for row in rows for o in row.outcomes}
    return not names or found <= set(names)


def unexpected(config: TaskConfig, rows: Sequence[Row], said: Collection[str] = ()) -> list[str]:
    """Settings that a reader cannot know, one by one: "training.weight_decay 0.1 (0.0)", the default in brackets.

    Where defaults are frozen they follow the paper, and what differs from them is named; of a user's own trainer all
    settings are named. Left out are `said`, what none of the rows reads, and what the table's other notes hold: the
    corpus, and how the sets are decoded.
    """
    frozen = config.setting_roles.frozen_defaults
    usual = defaults(type(config)) if frozen else {}
    settings = dict(flatten(config))
    groups = ("evaluation.", "data.builtin_" if settings.get("data.corpus") != "builtin" else "evaluation.")
    elsewhere = ("task", "seed", *said, *(("data.corpus",) if frozen else ()))
    found = []
    for name, value in settings.items():
        if name in elsewhere or (frozen and name.startswith(groups)) or usual.get(name, _NONE) == value:
            continue
        if not any(row.reads(name) for row in rows):
            continue
        default = f" ({show(name, usual[name])})" if name in usual else ""
        found.append(f"{name} {show(name, value)}{default}")
    return found


_NONE = object()


def show(name: str, value: Any) -> str:
    """A setting's value as the paper prints it: 300000 steps as 300K, 0.1, yes/no, names as they are."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return "+".join(show(name, item) for item in value) or "unset"
    if isinstance(value, float) and len(repr(value)) > 8:
        return f"{value:.4g}"  # a tuned one; in full in JSON and CSV
    if name == "training.train_steps" and isinstance(value, int) and value >= 10_000 and value % 1000 == 0:
        return f"{value // 1000}K"
    return str(value)
