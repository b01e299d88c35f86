"""Network changes: settings by which extras change a network. The extension point is `changes` (docs/extending.md).

A network change named NAME adds a setting NAME to built-in tasks and to users' functions. If a row sets `NAME = VALUE`,
the network is changed before its training; the value is part of run_id. If a row sets `evaluation.NAME`, the trained
network is changed before its evaluation; the value is part of eval_id. Imports no torch.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from pydantic import Field, SerializerFunctionWrapHandler, ValidationError, create_model, model_serializer
from pydantic_core import to_jsonable_python

from experiments.dotted import flatten
from experiments.errors import UserError
from model.config import ModelConfig
from model.extensions import ExtensionError, added, load
from model.strict import StrictModel

Batches = Callable[[], Iterable[Any]]  # returns the first batches of the training
Ask = Callable[[Mapping[str, Any]], dict[str, Any]]  # sends a request to the process of a user's function


class PlannedNetwork(NamedTuple):
    """A network of a built-in task before it is changed."""

    model: ModelConfig
    sizes: tuple[int, int]  # vocabulary sizes of target and source
    lengths: tuple[int, int]  # target and source length of a typical pair, in word pieces


class Added(NamedTuple):
    """Parameters and operations that a change adds to a network."""

    params: int = 0
    flops: float = 0.0  # floating-point operations per typical pair in training


class NetworkChange(ABC):
    """A change of networks, declared by an extra. Its module imports no torch; the method `apply` may import torch.

    kind: the type of the setting, for pydantic.
    default: the value of the setting if a row does not set it. The default changes nothing and is not recorded.
    client: the folder with a module NAME. `context.ablate` imports this module as `ablations_task.NAME` in the process
        of a user's function (experiments/client/ablations_task/changes.py). If `client` is None, users' functions do
        not have the setting.
    """

    kind: Any
    default: Any
    description: str = ""
    client: Path | None = None

    def check(self, value: Any, at_evaluation: Any, network: PlannedNetwork) -> None:  # noqa: B027 - optional
        """Check the value for the training and the value for the evaluation of a network of a built-in task.

        Raises UserError if a value does not fit the network.
        """

    def check_function(self, value: Any, ask: Ask) -> None:  # noqa: B027 - optional
        """Check a value for the network of a user's function.

        ask: function that sends a request to the module NAME in the process of the user's function.

        Raises UserError if the value does not fit the network.
        """

    def added(self, value: Any, network: PlannedNetwork) -> Added:
        """Predict the parameters and operations that the change adds. Raises UserError as `check` does."""
        return Added()

    def operations(self, value: Any, model: ModelConfig, sizes: tuple[int, int]) -> Callable[[Any, Any], Any]:
        """Return a function that computes the operations that the change adds per pair.

        The arguments of the returned function are arrays of source and target lengths (N,).
        """
        return lambda source, target: 0.0

    @abstractmethod
    def apply(
        self, value: Any, model: Any, batches: Batches, *, saved: Mapping[str, Any] | None, seed: int | None
    ) -> dict[str, Any]:
        """Change a network in place and return facts for the record.

        batches: function that returns the first batches of the training.
        saved: saved weights of a network to which the same change was applied. If given, use them instead of `batches`.
        seed: seed for random numbers, if the change is made at evaluation. Before a training, the seed is None, because
            torch's generator is already seeded.

        Raises UserError if the value does not fit the network.
        """


class Changeable(StrictModel):
    """Base class of settings to which `with_changes` adds the settings of network changes.

    A dump contains an added setting only if it differs from its default.
    """

    network_changes: ClassVar[Mapping[str, NetworkChange]] = {}  # name of the setting → network change

    @classmethod
    def accepts(cls, change: NetworkChange) -> bool:
        """Return whether `with_changes` adds the setting of this change."""
        return True

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        changes = changes_of(self)
        return {name: v for name, v in dump(self).items() if name not in self.network_changes or name in changes}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Read settings as `StrictModel.from_mapping` does, but ignore unknown settings that are empty lists.

        Version 0.1.0 recorded the settings of extras as empty lists if they were not set.
        """
        return super().from_mapping(_without_unset(cls, values))


def _without_unset(kind: type[Changeable], values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name in kind.model_fields or value != []}
    group = _evaluation_of(kind)
    if group is not None and isinstance(kept.get("evaluation"), Mapping):
        kept["evaluation"] = _without_unset(group, kept["evaluation"])
    return kept


def _evaluation_of(kind: type[Changeable]) -> type[Changeable] | None:
    """Return the type of the group `evaluation`; None if the settings have no such group."""
    field = kind.model_fields.get("evaluation")
    found = field.annotation if field is not None else None
    return found if isinstance(found, type) and issubclass(found, Changeable) else None


Settings = TypeVar("Settings", bound=StrictModel)
# Names of the modules of ablations_task. A network change cannot have one of these names, because its module is added
# to that package.
_MODULES_OF_CLIENT = {file.stem for file in (Path(__file__).parents[1] / "client" / "ablations_task").glob("*.py")}


def installed_changes() -> dict[str, NetworkChange]:
    """Return the network changes that extras and packages add, by name. A change that cannot be loaded is left out."""
    found = {}
    for name in added("changes"):
        with contextlib.suppress(ExtensionError):  # `broken_change` reports the error if a study uses the setting
            found[name] = _loaded(name)
    return found


def _loaded(name: str) -> NetworkChange:
    """Return the network change of this name. Raises ExtensionError if it cannot be used."""
    place = added("changes")[name]
    if name in _MODULES_OF_CLIENT:
        raise ExtensionError(
            f"The change of networks {name} ({place}) has the name of a module of ablations_task, which users' "
            "functions import. Rename its entry point."
        )
    change: NetworkChange = load(place)
    return change


def broken_change(name: str) -> str:
    """Return why an installed network change cannot be used. Return "" if it can be used or is not installed."""
    if name in added("changes"):
        try:
            _loaded(name)
        except ExtensionError as error:
            return str(error)
    return ""


def why_unknown(name: str) -> str:
    """Return why a recorded or queued setting is unknown to this program, and what to do. name: dotted name."""
    return broken_change(name.rpartition(".")[2]) or (
        f"No installed extra or package has the setting {name}. Install the one that adds it (`modules`: the extra "
        "module_rows), or a version of this program that has the setting."
    )


def recorded_settings(kind: type[Settings], values: Mapping[str, Any], trained: str) -> Settings:
    """Read the recorded settings of a training.

    kind: the type of the settings.
    trained: the subject of the error message, such as "The run a1".

    Raises UserError for a setting that is unknown or whose value is invalid.
    """
    try:
        return kind.from_mapping(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        why = why_unknown(name) if first["type"] == "extra_forbidden" else f"This version refuses it: {first['msg']}."
        raise UserError(f"{trained} was trained with the setting {name}. {why}") from None


def with_changes(kind: type[Settings]) -> type[Settings]:
    """Return the type of settings extended by the settings of network changes, also in its group `evaluation`.

    A type that is not `Changeable` is returned unchanged.
    """
    if not issubclass(kind, Changeable):
        return kind
    changes = tuple((name, change) for name, change in installed_changes().items() if kind.accepts(change))
    if dict(changes) == kind.network_changes:
        return kind
    made: type[Settings] = _extended(kind, changes)
    return made


@cache
def _extended(kind: type[Changeable], changes: tuple[tuple[str, NetworkChange], ...]) -> Any:
    fields: dict[str, Any] = {}
    group = _evaluation_of(kind)
    if group is not None:
        extended = _extended(group, changes)
        fields["evaluation"] = (extended, extended())
    for name, change in changes:
        fields[name] = (change.kind, Field(change.default, description=change.description))
    made = create_model(kind.__name__, __base__=kind, __module__=kind.__module__, **fields)
    made.network_changes = dict(changes)
    return made


def changes_of(settings: Any) -> dict[str, Any]:
    """Return the network changes that differ from their defaults in these settings, as name → value."""
    values = {name: getattr(settings, name) for name in settings.network_changes}
    return {name: value for name, value in values.items() if value != settings.network_changes[name].default}


def all_settings(config: StrictModel) -> dict[str, Any]:
    """Return all settings by dotted name, including the settings of network changes that have their defaults."""
    settings = dict(flatten(config))
    for prefix, group in (("", config), ("evaluation.", getattr(config, "evaluation", None))):
        if isinstance(group, Changeable):
            for name, change in group.network_changes.items():
                settings.setdefault(prefix + name, to_jsonable_python(change.default))
    return settings


def change_network(
    settings: Any,
    values: Mapping[str, Any],
    model: Any,
    batches: Batches = tuple,
    *,
    saved: Mapping[str, Any] | None = None,
    seed: int | None = None,
) -> dict[str, Any]:
    """Apply network changes in place and return facts for the record.

    settings: settings of the run. Their type declares the network changes.
    values: name of the change → value.
    model, batches, saved, seed: as in `NetworkChange.apply`.
    """
    facts: dict[str, Any] = {}
    for name, value in values.items():
        facts |= settings.network_changes[name].apply(value, model, batches, saved=saved, seed=seed)
    return facts
