"""Find a user's own run by the settings that it recorded, where its name is not the one that its settings have now.

A run of an own task is named by all of its settings, because a user may change any default. So a setting that is added
later gives every run another name, although nothing of it changes. What counts is the record: a run is the planned
one if every setting that it recorded has the planned value, and every setting that it did not record has its default.
With that value its numbers are printed, and the value is recorded beside the run (COUNTED): a default that changes
later is then another run, as is any changed default. For the rest there is the word of the study's author,
`[[same_as]]`, which `ablations adopt` writes.

Built-in tasks need none of this: their defaults are frozen, and their runs are named by what differs from them.
"""

import contextlib
import os
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from experiments.config import TaskConfig, defaults, flatten
from experiments.errors import Damaged, UserError
from experiments.identity import digest, identity_settings, recorded_identity, run_identity
from experiments.store.checksummed import read_json, write_json
from experiments.store.layout import Store, config_of, description_of
from experiments.store.results import RESULT_FILE


@dataclass(frozen=True)
class SameAs:
    """The word of a study's author: runs trained with `was` stand for runs with `now`, or else for the planned ones."""

    was: Mapping[str, Any]  # settings by dotted name
    why: str
    now: Mapping[str, Any] | None = None
    when: str = ""  # the day on which `ablations adopt` wrote it

    def speaks_of(self, recorded: Mapping[str, Any], counted: Collection[str] = ()) -> bool:
        """Whether a run of these settings is one of those that are spoken of. `counted`: those it did not record."""
        added = (name for name in self.now or {} if name not in self.was)
        return all(recorded.get(name) == value for name, value in self.was.items()) and all(
            recorded.get(name) is None or name in counted for name in added
        )

    def speaks_for(self, changed: Collection[str]) -> bool:
        """Whether it may stand for a run whose row changes these settings: not without the author's own `now`."""
        return self.now is not None or not self.was.keys() & set(changed)

    def applied(self, recorded: Mapping[str, Any], planned: Mapping[str, Any]) -> dict[str, Any]:
        """The settings that a run stands for of which this speaks."""
        now = {name: planned[name] for name in self.was if name in planned} if self.now is None else self.now
        return {**{name: value for name, value in recorded.items() if name not in self.was}, **now}


COUNTED = "counted.json"  # in a run's folder: settings that it did not record, as its numbers were printed
_VERSION = 1


class Known(NamedTuple):
    """A run of the store, by what it recorded when it was named, and as what it was counted since."""

    run_id: str
    kind: str  # equal for runs of the same task, seed and data, whatever their settings
    settings: Mapping[str, Any]  # by dotted name, without task and seed
    finished: bool
    counted: Mapping[str, Any]  # those of them that it did not record


class Found(NamedTuple):
    """The run that a planned one is in the store; `same_as`: by which word, where their settings differ."""

    run_id: str
    same_as: SameAs | None = None
    added: Mapping[str, Any] = MappingProxyType({})  # planned settings that it was trained without


class KnownRuns:
    """The runs of a store. `same_as`: what the study says of runs with other settings.

    belongs: whether a run was one of the study. Trainers of two projects may have one name, and equal settings.
    """

    def __init__(
        self, store: Store, same_as: Iterable[SameAs] = (), belongs: Callable[[str], bool] = lambda run_id: True
    ) -> None:
        self._store, self._same_as, self._belongs = store, tuple(same_as), belongs
        self._by_settings: dict[type, dict[tuple[str, Hashable], list[Known]]] = {}

    def find(self, config: TaskConfig, inputs: Mapping[str, str], changed: Collection[str] = ()) -> Found:
        """The planned run: under its own name, unless only another one of the same settings is finished or begun.

        changed: the settings that its row changes.
        """
        own = run_identity(config, inputs)
        if config.roles().frozen_defaults or self._finished(own):
            return Found(own)
        others = ((known, found) for known, found in self._fitting(config, inputs, changed) if known.run_id != own)
        fitting = [(found, known.finished) for known, found in others if self._belongs(known.run_id)]
        finished = [found for found, done in fitting if done]
        begun = [found for found, done in fitting if not done and found.same_as is None]
        if finished:
            return min(finished, key=lambda found: found.same_as is not None)  # first without a word
        return Found(own) if self._store.run_folder(own).exists() or not begun else begun[0]

    def finished(self) -> list[Known]:
        """The finished runs."""
        return [known for known in self._every if known.finished]

    def _fitting(
        self, config: TaskConfig, inputs: Mapping[str, str], changed: Collection[str]
    ) -> Iterator[tuple[Known, Found]]:
        """The runs whose records are of these settings, then those that are on the author's word."""
        planned, usual = identity_settings(config), _usual(config)
        if type(config) not in self._by_settings:
            found: dict[tuple[str, Hashable], list[Known]] = {}
            self._by_settings[type(config)] = found
            for known in self._every:
                found.setdefault((known.kind, _set(known.settings, usual)), []).append(known)
        kind = kind_of(config.task, config.seed, inputs)
        for known in self._by_settings[type(config)].get((kind, _set(planned, usual)), []):
            if agrees(known.settings, planned, usual):
                added = {n: v for n, v in planned.items() if n not in known.settings or n in known.counted}
                trained = self._trained_with(known.run_id) if added and known.finished else {}
                if all(trained.get(n, v) == v for n, v in added.items()):
                    yield known, Found(known.run_id, added={n: v for n, v in added.items() if n not in trained})
        for known, word in self._words.get(kind, []):
            stands_for = word.applied(known.settings, planned)
            if word.speaks_for(changed) and agrees(stands_for, planned, usual):
                yield known, Found(known.run_id, word, {n: v for n, v in planned.items() if n not in stands_for})

    def _trained_with(self, run_id: str) -> Mapping[str, Any]:
        """The settings of a run's last attempt: begun again, it may have had more than when it was named."""
        with contextlib.suppress(Damaged):  # the table leaves it out
            result = self._store.result(run_id)
            return dict(flatten(result.config)) if result and result.config else {}
        return {}

    def _finished(self, run_id: str) -> bool:
        return (self._store.run_folder(run_id) / RESULT_FILE).exists()

    @cached_property
    def _words(self) -> dict[str, list[tuple[Known, SameAs]]]:
        """What is said of finished runs, by kind."""
        found: dict[str, list[tuple[Known, SameAs]]] = {}
        for known in self.finished() if self._same_as else ():
            words = [word for word in self._same_as if word.speaks_of(known.settings, known.counted)]
            found.setdefault(known.kind, []).extend((known, word) for word in words)
        return found

    @cached_property
    def _every(self) -> list[Known]:
        found = []
        for run_id in self._store.run_ids():
            # `report` names damaged records that are planned
            record = description_of(self._store, run_id, forgiving=True)
            config, inputs = record.get("config"), record.get("inputs")
            if isinstance(config, dict) and isinstance(inputs, dict):
                settings = dict(flatten(config))
                kind = kind_of(settings.pop("task", ""), settings.pop("seed", None), inputs)
                counted = {n: v for n, v in counted_as(self._store, run_id).items() if n not in settings}
                found.append(Known(run_id, kind, {**settings, **counted}, self._finished(run_id), counted))
        return found


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


def name_of(store: Store, run_id: str, config: TaskConfig, inputs: Mapping[str, str], *, train: bool) -> str:
    """The name that settings have in a store: that of the run's own record, if they are the settings of this run.

    train: false where the run is finished and only evaluated; then the author's word may stand for its settings.
    """
    made, roles = run_identity(config, inputs), config.roles()
    recorded = {} if made == run_id or roles.frozen_defaults else config_of(store, run_id)
    if not recorded:
        return made
    settings = {name: value for name, value in flatten(recorded) if name not in ("task", "seed")}
    same = agrees(settings, identity_settings(config), _usual(config))
    return recorded_identity(recorded, inputs, roles.not_in_run_id) if same or not train else made


def _usual(config: TaskConfig) -> Mapping[str, Any]:
    """The defaults with which a run counts as trained that did not record them."""
    usual, needed = defaults(type(config)), config.roles().always_recorded
    return {name: value for name, value in usual.items() if name not in needed} if needed else usual


def agrees(recorded: Mapping[str, Any], planned: Mapping[str, Any], usual: Mapping[str, Any]) -> bool:
    """Whether a record is of the planned settings: equal in what it has, and the default in what was added since."""
    return not differing(recorded, planned, usual)


def differing(recorded: Mapping[str, Any], planned: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in which a record is not of the planned ones, with the recorded values; None where it has none."""
    found = {name: value for name, value in recorded.items() if name not in planned or planned[name] != value}
    added = {name for name in planned if name not in recorded and planned[name] != usual.get(name)}
    return {**found, **dict.fromkeys(sorted(added))}


def _set(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> Hashable:
    """The settings that are not their defaults: equal for a record and the planned settings that it agrees with.

    So that of a thousand runs only those few are compared that may be the planned one.
    """
    return frozenset((name, _frozen(value)) for name, value in settings.items() if usual.get(name) != value)


def _frozen(value: Any) -> Hashable:
    """A value of JSON that can be looked up; equal where the values are."""
    if isinstance(value, list | tuple):
        return tuple(map(_frozen, value))
    return frozenset((k, _frozen(v)) for k, v in value.items()) if isinstance(value, Mapping) else value


def kind_of(task: object, seed: object, inputs: Mapping[str, str]) -> str:
    """What runs of the same task, seed and data have in common."""
    return digest([task, seed, dict(inputs)])
