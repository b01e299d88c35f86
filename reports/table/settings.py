"""The settings that a table shows: settings that vary, as columns, and settings that differ from the defaults."""

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
    """Return the settings of a row that differ from those of the base row; without a base, the row's overrides."""
    if base is None:
        return dict(row.overrides)
    reference = _printable(base, base.runs[0])
    return {n: v for n, v in _printable(row, row.runs[0]).items() if v != reference.get(n)}


def shown(row: Row, base: Row | None, names: Collection[str]) -> dict[str, Any]:
    """Return the settings that a row prints, among the settings in `names` and the row's changes.

    The base row prints all settings that its runs use. Another row prints its changes, and settings that base does not
    use. A blank cell means that the row has the same value as base.
    """
    if base is None:
        return at(row, row.settings)
    own = at(row, dict.fromkeys([*names, *row.settings]))
    return {n: v for n, v in own.items() if row.key == base.key or n in row.settings or not base.reads(n)}


def at(row: Row, names: Collection[str]) -> dict[str, Any]:
    """Return the row's values of the settings in `names`, without settings that the row's runs do not use."""
    settings = _printable(row.spec, row.outcomes[0].run)
    return {name: settings[name] for name in names if name in settings and row.reads(name)}


def here(row: Row) -> str:
    """Return the declared and the actual value of a size in the row's key: "8 → 4" for C-N8.

    Return "" if the two values are equal, or if the key contains no size.
    """
    declared = row.spec.declared
    actual = at(row, declared)
    said = {*re.findall(r"\d+(?:\.\d+)?", row.key)}
    scaled = [(value, actual[name]) for name, value in declared.items() if str(value) in said and name in actual]
    return ", ".join(dict.fromkeys(f"{old} → {new}" for old, new in scaled if new != old))


def between(row: Row, other: Row) -> dict[str, Any]:
    """Return the settings of `row` that have another value in the row `other`."""
    theirs = _printable(other.spec, other.outcomes[0].run)
    own = at(row, _printable(row.spec, row.outcomes[0].run))
    return {name: value for name, value in own.items() if value != theirs.get(name)}


def _printable(row: RowSpec, run: TableRun) -> dict[str, Any]:
    """Return the settings of a row's run, together with the row's `facts`, by name."""
    return {
        **{name: value for name, value in all_settings(run.config).items() if name not in ("seed", "task")},
        **row.facts,
    }


def columns(
    rows: Sequence[tuple[str, Settings]], heads: Mapping[str, str], named: Sequence[str], tuned: Sequence[str] = ()
) -> dict[str, str]:
    """Return the settings that are columns, with their heads.

    rows: (label, settings) of all rows except base. heads: the heads in the study. named: the settings in the study's
    [columns]. If `named` is not empty, the columns are these settings and the tuned ones. If it is empty, the columns
    are the settings that vary. Settings that only rows with a label change are left out, because the label describes
    them.
    """
    varying = dict.fromkeys(name for _, settings in rows for name in settings)
    unsaid = {name for label, settings in rows if not label for name in settings}
    found = [name for name in tuned if name in unsaid]
    printed = [*named, *found] if named else [name for name in {**heads, **varying} if name in unsaid]
    return {name: heads.get(name, name.rpartition(".")[2]) for name in dict.fromkeys(printed)}


def on_corpus(rows: Sequence[Row], names: Collection[str]) -> bool:
    """Return whether every row is trained on a corpus folder with one of these names. True if there are no names."""
    found = {PurePath(str(o.setting("data.corpus") or "")).name for row in rows for o in row.outcomes}
    return not names or found <= set(names)


def unexpected(config: TaskConfig, rows: Sequence[Row], said: Collection[str] = ()) -> list[str]:
    """Return the settings that a reader cannot know, as "name value (default)": "training.weight_decay 0.1 (0.0)".

    For built-in tasks, whose defaults are the paper's values, these are the settings that differ from the default. For
    a user's trainer, these are all settings. Settings in `said` and settings that no row uses are left out. For
    built-in tasks, settings that other notes describe (corpus and decoding) are left out, too.
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
    """Return a setting's value as the paper prints it, such as 300K for 300000 steps, or yes for true."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return "+".join(show(name, item) for item in value) or "unset"
    if isinstance(value, float) and len(repr(value)) > 8:
        return f"{value:.4g}"  # a tuned value; JSON and CSV have all digits
    if name == "training.train_steps" and isinstance(value, int) and value >= 10_000 and value % 1000 == 0:
        return f"{value // 1000}K"
    return str(value)
