"""Find a user's own run by the settings that it recorded, where its name is not the one that its settings have now.

A run of an own task is named by all of its settings, because a user may change any default. So a setting that is added
later gives every run another name, although nothing of it changes. What counts is the record: a run is the planned
one if every setting that it recorded has the planned value, and every setting that it did not record has its default.
A changed default is then another run. A user may also say that a run is as good as another (adopted.py).

Built-in tasks need none of this: their defaults are frozen, and their runs are named by what differs from them.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from experiments.config import TaskConfig, defaults, flatten
from experiments.identity import digest, identity_settings, recorded_identity, run_identity
from experiments.store.adopted import Adopted, adoptions
from experiments.store.description import config_of, description_of
from experiments.store.layout import Store
from experiments.store.results import FILE


class Known(NamedTuple):
    """A run of the store, by what it recorded when it was named."""

    run_id: str
    kind: str  # equal for runs of the same task, seed and data, whatever their settings
    settings: Mapping[str, Any]  # by dotted name, without task and seed
    finished: bool


class Found(NamedTuple):
    """The run that a planned one is in the store; `adopted`: on whose word, where their settings differ."""

    run_id: str
    adopted: Adopted | None = None


class KnownRuns:
    """The runs of a store. `same_as`: what the study itself says of runs with other settings.

    belongs: whether a run was one of the study. Trainers of two projects may have one name, and equal settings.
    """

    def __init__(
        self, store: Store, same_as: Iterable[Adopted] = (), belongs: Callable[[str], bool] = lambda run_id: True
    ) -> None:
        self._store, self._same_as, self._belongs = store, tuple(same_as), belongs
        self._by_settings: dict[type, dict[tuple[str, Hashable], list[Known]]] = {}

    def find(self, config: TaskConfig, inputs: Mapping[str, str]) -> Found:
        """The planned run: under its own name, unless only another one of the same settings is finished or begun."""
        own = run_identity(config, inputs)
        if config.roles().frozen_defaults or self._finished(own):
            return Found(own)
        others = ((known, found) for known, found in self._fitting(config, inputs) if known.run_id != own)
        fitting = [(found, known.finished) for known, found in others if self._belongs(known.run_id)]
        finished = [found for found, done in fitting if done]
        begun = [found for found, done in fitting if not done and found.adopted is None]
        if finished:
            return min(finished, key=lambda found: found.adopted is not None)  # first without anybody's word
        return Found(own) if self._store.run_folder(own).exists() or not begun else begun[0]

    def finished(self) -> list[Known]:
        """The finished runs."""
        return [known for known in self._every if known.finished]

    def _fitting(self, config: TaskConfig, inputs: Mapping[str, str]) -> Iterator[tuple[Known, Found]]:
        """The runs whose records are of these settings, then those that are on somebody's word."""
        planned, usual = identity_settings(config), defaults(type(config))
        if type(config) not in self._by_settings:
            found: dict[tuple[str, Hashable], list[Known]] = {}
            self._by_settings[type(config)] = found
            for known in self._every:
                found.setdefault((known.kind, _set(known.settings, usual)), []).append(known)
        kind = kind_of(config.task, config.seed, inputs)
        for known in self._by_settings[type(config)].get((kind, _set(planned, usual)), []):
            if agrees(known.settings, planned, usual):
                yield known, Found(known.run_id)
        for known, word in self._words.get(kind, []):
            if agrees(word.applied(known.settings, planned), planned, usual):
                yield known, Found(known.run_id, word)

    def _finished(self, run_id: str) -> bool:
        return (self._store.run_folder(run_id) / FILE).exists()

    @cached_property
    def _words(self) -> dict[str, list[tuple[Known, Adopted]]]:
        """What is said of finished runs, by kind."""
        found: dict[str, list[tuple[Known, Adopted]]] = {}
        for known in self.finished():
            words = (*adoptions(self._store, known.run_id), *self._same_as)
            found.setdefault(known.kind, []).extend((known, w) for w in words if w.speaks_of(known.settings))
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
                found.append(Known(run_id, kind, settings, self._finished(run_id)))
        return found


def name_of(store: Store, run_id: str, config: TaskConfig, inputs: Mapping[str, str], *, train: bool) -> str:
    """The name that settings have in a store: that of the run's own record, if they are the settings of this run.

    train: false where the run is finished and only evaluated; then somebody's word may stand for its settings.
    """
    made, roles = run_identity(config, inputs), config.roles()
    recorded = {} if made == run_id or roles.frozen_defaults else config_of(store, run_id)
    if not recorded:
        return made
    settings = {name: value for name, value in flatten(recorded) if name not in ("task", "seed")}
    same = agrees(settings, identity_settings(config), defaults(type(config)))
    return recorded_identity(recorded, inputs, roles.not_in_run_id) if same or not train else made


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
