"""The name of a planned run in a store: from its settings, compared with what the run of that name recorded.

A run of a built-in task is named by its settings alone. The defaults of a user's trainer may change at any time, so a
run of such a trainer is also compared with the record of its name:

 - A setting that the record lacks was added later. The run counts as trained with its present default; the table says
   so, and once that was printed, the value is kept beside the run (COUNTED).
 - Where the record has another value, a default has changed. Then a digest of the changed defaults joins the name. If
   the default moves back, the earlier run is found again.
 - A finished run of the study whose record has all the settings that are asked for is the run, whatever its name.
   Not a run of version 0.1.0 whose row changes code: it recorded the row's tree, and not the change.
"""

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.command_words import compared_words
from experiments.config.task_config import TaskConfig
from experiments.dotted import defaults, flatten
from experiments.errors import Damaged, UserError
from experiments.identity import CODE_CHANGE, digest, identity_of, identity_settings, named_settings
from experiments.run_spec import NO_TRAINER, RunSpec, TrainerSpec, recorded_spec
from experiments.store.checksummed import read_json, write_json
from experiments.store.layout import Store, description_of
from experiments.store.results import RESULT_FILE

COUNTED = "counted.json"  # in a run's folder: settings that it did not record, as its numbers were printed
_VERSION = 1
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_TREE = "code_tree"  # in the name of a run of version 0.1.0
# Runs of version 0.1.0 were named by all settings that they recorded, except these.
_NOT_IN_OLD_NAMES = ("task", "seed", "output_progress", "folder_links", "code_lines")


class RunName(NamedTuple):
    """A run_id with what it was made of."""

    run_id: str
    settings: Mapping[str, Any] | None = None  # those that name it; None: a built-in task, whose defaults are frozen
    changed: Mapping[str, Any] = _NOTHING  # defaults that changed before it, with its values
    added: Mapping[str, Any] = _NOTHING  # settings that the run of this name did not record


class KnownRun(NamedTuple):
    """A run of the store, by what it recorded."""

    name: RunName
    settings: Mapping[str, Any]  # `recorded_settings`, without task and seed, with those that it was counted with
    counted: Mapping[str, Any]  # those of them that it did not record
    kind: str  # equal for runs of the same task, seed, data and change of code
    finished: bool
    tree: str = ""  # of a run of version 0.1.0: the tree that trained it, if its study has rows that change code
    of_unknown_change: bool = False  # its row changes code; version 0.1.0 recorded only the tree that this gave


def run_name(
    config: TaskConfig,
    inputs: Mapping[str, str],
    trainer: TrainerSpec = NO_TRAINER,
    changed: Mapping[str, Any] = _NOTHING,
) -> RunName:
    """The name of a run from its settings and the fixed words of its command alone."""
    settings = named_settings(config)
    if trainer.command:
        settings["command"] = compared_words(trainer.command)["command"]
    run_id = identity_of(config.task, config.seed, settings, inputs, changed)
    return RunName(run_id) if config.roles().frozen_defaults else RunName(run_id, settings, changed)


class RunNames:
    """The names of planned runs in a store. belongs: whether a run was queued for the planned study."""

    def __init__(self, store: Store, belongs: Callable[[str], bool] = lambda run_id: True) -> None:
        self._store, self._belongs = store, belongs
        self._by_settings: dict[type, dict[tuple[str, Hashable], list[KnownRun]]] = {}

    def find(self, config: TaskConfig, inputs: Mapping[str, str], trainer: TrainerSpec = NO_TRAINER) -> RunName:
        """The name of a planned run."""
        plain = run_name(config, inputs, trainer)
        if config.roles().frozen_defaults:
            return plain
        named = self._named(config, inputs, trainer, plain)
        known = self._recorded(named.run_id)
        if known is None or not known.finished:
            others = [other for other in self._equal(config, inputs, trainer) if other.name.run_id != named.run_id]
            others.sort(key=lambda other: other.tree != trainer.tree)  # version 0.1.0 has a run of each tree
            best = next((other for other in others if other.finished), None)
            best = best or (others[0] if others and known is None else None)
            if best is not None:
                return best.name._replace(added=_added(best, planned_settings(config, trainer)))
        return named

    def finished(self) -> list[KnownRun]:
        """The finished runs."""
        return [known for known in self._every if known.finished]

    def _named(self, config: TaskConfig, inputs: Mapping[str, str], trainer: TrainerSpec, name: RunName) -> RunName:
        """The plain name, or the name with a digest of the defaults that changed since its run was recorded."""
        planned, usual = planned_settings(config, trainer), usual_settings(config, trainer)
        while (known := self._recorded(name.run_id)) is not None:
            names = differing(settings_of_known(config, known, usual), planned, usual)
            added = _added(known, planned)
            if not names and added and not self._belongs(name.run_id):
                names = dict(added)  # a trainer of the same name in another project
            changed = {**name.changed, **{one: planned.get(one) for one in names}}
            if changed == name.changed:
                return name._replace(added=added)
            name = run_name(config, inputs, trainer, changed)
        return name

    def _equal(self, config: TaskConfig, inputs: Mapping[str, str], trainer: TrainerSpec) -> Iterator[KnownRun]:
        """The study's runs whose records have the planned settings."""
        planned, usual = planned_settings(config, trainer), usual_settings(config, trainer)
        if type(config) not in self._by_settings:
            found: dict[tuple[str, Hashable], list[KnownRun]] = {}
            self._by_settings[type(config)] = found
            for known in self._every:
                settings = settings_of_known(config, known, usual)
                found.setdefault((known.kind, _unusual(settings, usual)), []).append(known)
        key = kind_of(config.task, config.seed, inputs), _unusual(planned, usual)
        for known in self._by_settings[type(config)].get(key, []):
            settings = settings_of_known(config, known, usual)
            if not differing(settings, planned, usual) and self._belongs(known.name.run_id):
                yield known

    def _recorded(self, run_id: str) -> KnownRun | None:
        return self._known(run_id) if (self._store.run_folder(run_id)).is_dir() else None

    @cached_property
    def _every(self) -> list[KnownRun]:
        return [known for run_id in self._store.run_ids() if (known := self._known(run_id))]

    def _known(self, run_id: str) -> KnownRun | None:
        """A run by its records; None for one that recorded no settings, or that is not one of a user's trainer."""
        record = description_of(self._store, run_id, forgiving=True)  # `report` names damaged records
        config, inputs = record.get("config"), record.get("inputs")
        if not isinstance(config, dict) or not isinstance(inputs, dict):
            return None
        try:
            spec = recorded_spec(record)
        except ValueError:
            return None
        # the name of a run of version 0.1.0 has the facts of its trainer, which its record has among the settings
        name = recorded_name(run_id, record, config if "trainer" not in record else spec.config, inputs)
        if name is None:
            return None
        settings, trainer = recorded_settings(spec), spec.trainer
        finished = (self._store.run_folder(run_id) / RESULT_FILE).exists()
        if finished:
            with contextlib.suppress(Damaged):  # the table leaves it out
                result = self._store.result(run_id)
                if result and result.spec:
                    settings |= recorded_settings(result.spec)
                    trainer = result.spec.trainer if result.spec.trainer.tree else trainer
        tree = trainer.tree if _TREE in (name.settings or {}) else ""  # then the run was queued by version 0.1.0
        unknown = bool(tree and trainer.lines)
        inputs = with_unknown_change(inputs, tree) if unknown else inputs
        kind = kind_of(settings.pop("task", ""), settings.pop("seed", None), inputs)
        counted = {n: v for n, v in counted_as(self._store, run_id).items() if n not in settings}
        return KnownRun(name, {**settings, **counted}, counted, kind, finished, tree, unknown)


def planned_settings(config: TaskConfig, trainer: TrainerSpec) -> dict[str, Any]:
    """The settings of a configuration, and the parts of its command, as they are compared with those of a record."""
    return {**identity_settings(config), **compared_words(trainer.command)}


def usual_settings(config: TaskConfig, trainer: TrainerSpec) -> dict[str, Any]:
    """The defaults of a configuration, and the parts of its command, as they are compared with those of a record."""
    return {**defaults(type(config)), **compared_words(trainer.command)}


def recorded_settings(spec: RunSpec) -> dict[str, Any]:
    """The settings of a record, and the parts of its command, by dotted name."""
    return {**dict(flatten(spec.config)), **compared_words(spec.trainer.command)}


def compared_settings(config: TaskConfig, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the recorded settings that are compared with the settings of a configuration."""
    roles = config.roles()
    groups = tuple(name for name in roles.not_in_run_id if name.endswith("."))
    return {n: v for n, v in recorded.items() if n not in roles.not_in_run_id and not n.startswith(groups)}


def settings_of_known(config: TaskConfig, known: KnownRun, usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run of the store as they are compared with those of a configuration.

    Without those as which it was counted and that the configuration does not have (any more): it did not record them.
    usual: the configuration's defaults.
    """
    counted = known.counted.keys() - usual.keys()
    return {n: v for n, v in compared_settings(config, known.settings).items() if n not in counted}


def differing(recorded: Mapping[str, Any], planned: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in which a record is not of the planned ones, with the recorded values; None where it has none.

    A planned setting that the record lacks is no difference if it has its default: it was added later.
    """
    found = {n: value for n, value in recorded.items() if n not in planned or not _same(planned[n], value)}
    added = {n for n in planned if n not in recorded and not _same(planned[n], usual.get(n))}
    return {**found, **dict.fromkeys(sorted(added))}


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of a setting are the same: 1 and 1.0 are, 1 and true are not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def kind_of(task: object, seed: object, inputs: Mapping[str, str]) -> str:
    """Return the digest that runs of the same task, seed and data share."""
    return digest([task, seed, dict(inputs)])


def with_unknown_change(inputs: Mapping[str, str], tree: str) -> dict[str, str]:
    """The inputs of a run of version 0.1.0 whose row changes code, in a way that it did not record: to a tree."""
    return {name: value for name, value in inputs.items() if name != CODE_CHANGE} | {"tree": tree}


def name_given_by(
    named_by: Mapping[str, Any],
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    command: str | None = None,
) -> str:
    """The run_id that a record of a run's name gives; "" if the settings that it names are not those of the run.

    named_by: as `named_by_of` writes it. config: nested, with task and seed. command: of the trainer, which the name
    must have; None: it is not checked.
    """
    settings, changed = named_by.get("settings"), named_by.get("changed defaults") or {}
    if not isinstance(settings, Mapping) or not isinstance(changed, Mapping):
        return ""
    flat = dict(flatten(config))
    words = compared_words(command or "")
    named = {**settings, **{name: value for name, value in changed.items() if value is not None}}
    for name, value in named.items():
        if name in words:
            same = value in (words[name], command)
        elif name == "command" and flat.get("task") == "command":
            same = True
        else:
            same = name in _TRAVELLING or value == flat.get(name, value)
        if not same:
            return ""
    return identity_of(flat.get("task"), flat.get("seed"), settings, inputs, changed)


def named_by_of(name: RunName) -> dict[str, Any] | None:
    """The record of a run's name; None for a built-in task."""
    return None if name.settings is None else {"settings": dict(name.settings), "changed defaults": dict(name.changed)}


def counted_as(store: Store, run_id: str) -> Mapping[str, Any]:
    """The settings that a run did not record, with the values as which its numbers were printed."""
    try:
        record = read_json(store.run_folder(run_id) / COUNTED) or {}
    except UserError:  # damaged: the table's note is left
        return {}
    settings = record.get("settings") if record.get("version") == _VERSION else None
    return settings if isinstance(settings, dict) else {}


def keep_counted(store: Store, run_id: str, added: Mapping[str, Any]) -> None:
    """Record that numbers of a run are printed as those of settings that it did not record.

    Does nothing where the store cannot be written: then the table's note is left.
    """
    before, folder = counted_as(store, run_id), store.run_folder(run_id)
    if added.keys() <= before.keys() or not os.access(folder, os.W_OK):
        return
    with contextlib.suppress(OSError):
        write_json(folder / COUNTED, {"version": _VERSION, "settings": {**added, **before}})


# Of a run of version 0.1.0: settings in its name that may be edited since.
_TRAVELLING = ("output_patterns", _TREE)


def recorded_name(
    run_id: str, record: Mapping[str, Any], config: Mapping[str, Any], inputs: Mapping[str, str]
) -> RunName | None:
    """The name that a description gives; None where it gives another, or none.

    config: the settings that the description names; those of version 0.1.0 with the facts of its trainer.
    """
    named_by = record.get("named_by")
    if named_by is None:
        settings = {name: value for name, value in flatten(config) if name not in _NOT_IN_OLD_NAMES}
        named_by = {"settings": settings}
    if not isinstance(named_by, Mapping) or name_given_by(named_by, config, inputs) != run_id:
        return None
    return RunName(run_id, named_by["settings"], named_by.get("changed defaults") or {})


def _added(known: KnownRun, planned: Mapping[str, Any]) -> dict[str, Any]:
    """The planned settings that a run did not record; how a command passes them is no setting."""
    lacking = {n: v for n, v in planned.items() if n not in known.settings or n in known.counted}
    return {name: value for name, value in lacking.items() if not name.startswith("command {")}


def _unusual(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> Hashable:
    """The settings that are not their defaults: equal for a record and the planned settings that it agrees with.

    So that of a thousand runs only those few are compared that may be the planned one.
    """
    return frozenset((name, _frozen(value)) for name, value in settings.items() if usual.get(name) != value)


def _frozen(value: Any) -> Hashable:
    """A value of JSON that can be looked up; equal where the values are."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return frozenset((k, _frozen(v)) for k, v in value.items()) if isinstance(value, Mapping) else value
