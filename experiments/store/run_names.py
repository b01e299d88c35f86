"""Find the name (run_id) of a planned run from its settings and from the records of the store.

The name of a run of a built-in task depends on its settings alone. The defaults of a user's trainer may change at any
time. So the program compares a planned run of a user's trainer with the record of the run that has the same name:

 - The record may lack a setting that was added to the trainer later. In this case the run counts as trained with the
   present default of the setting, and the table has a note about it. After the table is printed, the value is stored in
   the run's folder (COUNTED).
 - The record may have another value of a setting, because a default has changed. In this case the name of the planned
   run also depends on a digest of the changed defaults. If the default changes back, the earlier run is found again.
 - The run with this name may be missing or unfinished. In this case the program uses a finished run of the study whose
   record has all requested settings, whatever its name is. If the run with this name is missing, an unfinished run of
   the study may be used too. A run of version 0.1.0 whose row changes code is not used, because that version recorded
   the tree of the row and not the change.
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

COUNTED = "counted.json"  # file in a run's folder: settings that the run did not record, with values a table assumed
_VERSION = 1
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_TREE = "code_tree"  # a setting in the names of runs of version 0.1.0
# Recorded settings on which the names of runs of version 0.1.0 do not depend. They depend on all other settings.
_NOT_IN_OLD_NAMES = ("task", "seed", "output_progress", "folder_links", "code_lines")


class RunName(NamedTuple):
    """A run_id, with the settings from which it was computed."""

    run_id: str
    settings: Mapping[str, Any] | None = None  # the settings in the name; None for a built-in task (frozen defaults)
    changed: Mapping[str, Any] = _NOTHING  # changed defaults in the name, with the values of this run
    added: Mapping[str, Any] = _NOTHING  # settings that the run of this name did not record


class KnownRun(NamedTuple):
    """A run of the store, as its records describe it."""

    name: RunName
    settings: Mapping[str, Any]  # `recorded_settings` without task and seed, and the settings of `counted`
    counted: Mapping[str, Any]  # settings that the run did not record, with the values that a printed table assumed
    kind: str  # equal for runs of the same task, seed, data and change of code
    finished: bool
    tree: str = ""  # tree of code with which version 0.1.0 trained the run, if rows of its study change code
    of_unknown_change: bool = False  # whether the row changes code and version 0.1.0 recorded only the resulting tree


def run_name(
    config: TaskConfig,
    inputs: Mapping[str, str],
    trainer: TrainerSpec = NO_TRAINER,
    changed: Mapping[str, Any] = _NOTHING,
) -> RunName:
    """Return the name of a run, which depends on its settings and on the fixed words of its command.

    changed: changed defaults. If there are any, the name also depends on them; otherwise it is the plain name.
    """
    settings = named_settings(config)
    if trainer.command:
        settings["command"] = compared_words(trainer.command)["command"]
    run_id = identity_of(config.task, config.seed, settings, inputs, changed)
    return RunName(run_id) if config.roles().frozen_defaults else RunName(run_id, settings, changed)


class RunNames:
    """Finds the names of planned runs in a store.

    belongs: function of a run_id that returns whether this run was queued for the planned study.
    """

    def __init__(self, store: Store, belongs: Callable[[str], bool] = lambda run_id: True) -> None:
        self._store, self._belongs = store, belongs
        self._by_settings: dict[type, dict[tuple[str, Hashable], list[KnownRun]]] = {}

    def find(self, config: TaskConfig, inputs: Mapping[str, str], trainer: TrainerSpec = NO_TRAINER) -> RunName:
        """Return the name of a planned run. The docstring of this module states the rules."""
        plain = run_name(config, inputs, trainer)
        if config.roles().frozen_defaults:
            return plain
        named = self._named(config, inputs, trainer, plain)
        known = self._recorded(named.run_id)
        if known is None or not known.finished:
            others = [other for other in self._equal(config, inputs, trainer) if other.name.run_id != named.run_id]
            others.sort(key=lambda other: other.tree != trainer.tree)  # version 0.1.0 trained a run for each tree
            best = next((other for other in others if other.finished), None)
            best = best or (others[0] if others and known is None else None)
            if best is not None:
                return best.name._replace(added=_added(best, planned_settings(config, trainer)))
        return named

    def finished(self) -> list[KnownRun]:
        """Return the finished runs of the store."""
        return [known for known in self._every if known.finished]

    def _named(self, config: TaskConfig, inputs: Mapping[str, str], trainer: TrainerSpec, name: RunName) -> RunName:
        """Return the plain name, or the name with a digest of the defaults that changed since the run was recorded."""
        planned, usual = planned_settings(config, trainer), usual_settings(config, trainer)
        while (known := self._recorded(name.run_id)) is not None:
            names = differing(settings_of_known(config, known, usual), planned, usual)
            added = _added(known, planned)
            if not names and added and not self._belongs(name.run_id):
                names = dict(added)  # a trainer with the same name in another project made the recorded run
            changed = {**name.changed, **{one: planned.get(one) for one in names}}
            if changed == name.changed:
                return name._replace(added=added)
            name = run_name(config, inputs, trainer, changed)
        return name

    def _equal(self, config: TaskConfig, inputs: Mapping[str, str], trainer: TrainerSpec) -> Iterator[KnownRun]:
        """Yield the runs of the study whose records have the planned settings."""
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
        """Return a run as its records describe it.

        The result is None for a run that recorded no settings, and for a run of a built-in task.
        """
        record = description_of(self._store, run_id, forgiving=True)  # `report` lists damaged records
        config, inputs = record.get("config"), record.get("inputs")
        if not isinstance(config, dict) or not isinstance(inputs, dict):
            return None
        try:
            spec = recorded_spec(record)
        except ValueError:
            return None
        # Version 0.1.0 recorded the facts of the trainer among the settings, and they entered the name of the run.
        name = recorded_name(run_id, record, config if "trainer" not in record else spec.config, inputs)
        if name is None:
            return None
        settings, trainer = recorded_settings(spec), spec.trainer
        finished = (self._store.run_folder(run_id) / RESULT_FILE).exists()
        if finished:
            with contextlib.suppress(Damaged):  # the table leaves out a damaged result
                result = self._store.result(run_id)
                if result and result.spec:
                    settings |= recorded_settings(result.spec)
                    trainer = result.spec.trainer if result.spec.trainer.tree else trainer
        tree = trainer.tree if _TREE in (name.settings or {}) else ""  # version 0.1.0 queued the run
        unknown = bool(tree and trainer.lines)
        inputs = with_unknown_change(inputs, tree) if unknown else inputs
        kind = kind_of(settings.pop("task", ""), settings.pop("seed", None), inputs)
        counted = {n: v for n, v in counted_as(self._store, run_id).items() if n not in settings}
        return KnownRun(name, {**settings, **counted}, counted, kind, finished, tree, unknown)


def planned_settings(config: TaskConfig, trainer: TrainerSpec) -> dict[str, Any]:
    """Return the settings of a configuration and the parts of its command, for comparison with a record."""
    return {**identity_settings(config), **compared_words(trainer.command)}


def usual_settings(config: TaskConfig, trainer: TrainerSpec) -> dict[str, Any]:
    """Return the defaults of a configuration and the parts of its command, for comparison with a record."""
    return {**defaults(type(config)), **compared_words(trainer.command)}


def recorded_settings(spec: RunSpec) -> dict[str, Any]:
    """Return the settings of a record and the parts of its command, by dotted name."""
    return {**dict(flatten(spec.config)), **compared_words(spec.trainer.command)}


def compared_settings(config: TaskConfig, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded settings that are part of a run_id, according to the roles of a configuration."""
    roles = config.roles()
    groups = tuple(name for name in roles.not_in_run_id if name.endswith("."))
    return {n: v for n, v in recorded.items() if n not in roles.not_in_run_id and not n.startswith(groups)}


def settings_of_known(config: TaskConfig, known: KnownRun, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a run of the store, for comparison with the settings of a configuration.

    Settings in `counted` that the configuration no longer has are left out, because the run did not record them.

    usual: the defaults of the configuration.
    """
    counted = known.counted.keys() - usual.keys()
    return {n: v for n, v in compared_settings(config, known.settings).items() if n not in counted}


def differing(recorded: Mapping[str, Any], planned: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings in which a record differs from the planned run, by name, with the recorded values.

    If the record lacks a planned setting, the setting was added later. The setting is a difference only if its planned
    value is not the default. The result then has None as its value.

    usual: the defaults.
    """
    found = {n: value for n, value in recorded.items() if n not in planned or not _same(planned[n], value)}
    added = {n for n in planned if n not in recorded and not _same(planned[n], usual.get(n))}
    return {**found, **dict.fromkeys(sorted(added))}


def _same(one: Any, other: Any) -> bool:
    """Return whether two values of a setting are the same. 1 and 1.0 are the same; 1 and true are not."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def kind_of(task: object, seed: object, inputs: Mapping[str, str]) -> str:
    """Return a digest that is equal for runs with the same task, seed and inputs."""
    return digest([task, seed, dict(inputs)])


def with_unknown_change(inputs: Mapping[str, str], tree: str) -> dict[str, str]:
    """Return the inputs of a run of version 0.1.0 whose row changes code, with the tree in place of the change.

    Version 0.1.0 did not record the change itself.
    """
    return {name: value for name, value in inputs.items() if name != CODE_CHANGE} | {"tree": tree}


def name_given_by(
    named_by: Mapping[str, Any],
    config: Mapping[str, Any],
    inputs: Mapping[str, str],
    command: str | None = None,
) -> str:
    """Return the run_id that follows from the record of a run's name; "" if it contradicts the settings of the run.

    named_by: the record of the name, as `named_by_of` writes it.
    config: the nested settings, with task and seed.
    command: the command of the trainer, which must match the record; None: the command is not checked.
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
    """Return the record of a run's name; None for a built-in task."""
    return None if name.settings is None else {"settings": dict(name.settings), "changed defaults": dict(name.changed)}


def counted_as(store: Store, run_id: str) -> Mapping[str, Any]:
    """Return the settings that a run did not record, with the values that a printed table assumed for them."""
    try:
        record = read_json(store.run_folder(run_id) / COUNTED) or {}
    except UserError:  # the record is damaged, so the table keeps its note about the added settings
        return {}
    settings = record.get("settings") if record.get("version") == _VERSION else None
    return settings if isinstance(settings, dict) else {}


def keep_counted(store: Store, run_id: str, added: Mapping[str, Any]) -> None:
    """Record the values that a printed table assumed for settings that a run did not record.

    If the store cannot be written, do nothing. In this case the table keeps its note about the added settings.
    """
    before, folder = counted_as(store, run_id), store.run_folder(run_id)
    if added.keys() <= before.keys() or not os.access(folder, os.W_OK):
        return
    with contextlib.suppress(OSError):
        write_json(folder / COUNTED, {"version": _VERSION, "settings": {**added, **before}})


# Settings in the name of a run of version 0.1.0 that may have been edited since.
_TRAVELLING = ("output_patterns", _TREE)


def recorded_name(
    run_id: str, record: Mapping[str, Any], config: Mapping[str, Any], inputs: Mapping[str, str]
) -> RunName | None:
    """Return the name that a run's description gives; None if it gives no name or another run_id.

    config: the nested settings in the description. For version 0.1.0 they include the facts of the trainer.
    """
    named_by = record.get("named_by")
    if named_by is None:
        settings = {name: value for name, value in flatten(config) if name not in _NOT_IN_OLD_NAMES}
        named_by = {"settings": settings}
    if not isinstance(named_by, Mapping) or name_given_by(named_by, config, inputs) != run_id:
        return None
    return RunName(run_id, named_by["settings"], named_by.get("changed defaults") or {})


def _added(known: KnownRun, planned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the planned settings that a run did not record.

    Entries that describe how a command passes a setting are left out.
    """
    lacking = {n: v for n, v in planned.items() if n not in known.settings or n in known.counted}
    return {name: value for name, value in lacking.items() if not name.startswith("command {")}


def _unusual(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> Hashable:
    """Return the settings that differ from their defaults, as a key for looking up runs.

    The key of a record equals the key of planned settings that agree with this record. So the program has to compare
    only few runs of the store in full.
    """
    return frozenset((name, _frozen(value)) for name, value in settings.items() if usual.get(name) != value)


def _frozen(value: Any) -> Hashable:
    """Return a JSON value as a hashable value. Equal values give equal results."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return frozenset((k, _frozen(v)) for k, v in value.items()) if isinstance(value, Mapping) else value
