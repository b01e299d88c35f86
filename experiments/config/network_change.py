"""Changes of networks that extras add as settings: the extension point `changes` (docs/extending.md).

A change named NAME is a setting of built-in tasks and of users' functions. `NAME = VALUE` of a row changes the network
before its training, and is part of run_id. `evaluation.NAME` changes the trained network, and is part of eval_id.
Imports no torch.
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

Batches = Callable[[], Iterable[Any]]  # the first batches of the training
Ask = Callable[[Mapping[str, Any]], dict[str, Any]]  # asks the process of a user's function


class PlannedNetwork(NamedTuple):
    """A network of this program before it is changed."""

    model: ModelConfig
    sizes: tuple[int, int]  # of the vocabularies of target and source
    lengths: tuple[int, int]  # pieces of target and source of a typical pair


class Added(NamedTuple):
    """Parameters and operations that a change adds to a network."""

    params: int = 0
    flops: float = 0.0  # operations of the training on a typical pair


class NetworkChange(ABC):
    """A change of networks, declared by an extra. Its module imports no torch; `apply` may.

    kind: the type of the setting, for pydantic. default: its value where it is not set, which changes nothing and is
    not recorded. client: the folder of a module NAME, which `context.ablate` imports in the process of a user's
    function as `ablations_task.NAME` (experiments/client/ablations_task/changes.py); None if the change is not for
    users' functions, whose rows then have no such setting.
    """

    kind: Any
    default: Any
    description: str = ""
    client: Path | None = None

    def check(self, value: Any, at_evaluation: Any, network: PlannedNetwork) -> None:  # noqa: B027 - optional
        """Check the values before training and at evaluation. Raises UserError if they do not fit the network."""

    def check_function(self, value: Any, ask: Ask) -> None:  # noqa: B027 - optional
        """Check a value of a user's function. ask: send a request to the module NAME in its process.

        Raises UserError if it does not fit.
        """

    def added(self, value: Any, network: PlannedNetwork) -> Added:
        """Predict parameters and operations that the change adds. Raises UserError as `check` does."""
        return Added()

    def operations(self, value: Any, model: ModelConfig, sizes: tuple[int, int]) -> Callable[[Any, Any], Any]:
        """Return a function from lengths of sources and targets (N,) to the operations that each pair adds (N,)."""
        return lambda source, target: 0.0

    @abstractmethod
    def apply(
        self, value: Any, model: Any, batches: Batches, *, saved: Mapping[str, Any] | None, seed: int | None
    ) -> dict[str, Any]:
        """Change a network in place; return facts for the record.

        saved: the weights of a network that was changed in the same way, in place of batches. seed: for random numbers
        at evaluation; None before a training, which has set torch's state. Raises UserError.
        """


class Changeable(StrictModel):
    """Settings to which `with_changes` adds those of network changes. These are recorded only where they are set."""

    network_changes: ClassVar[Mapping[str, NetworkChange]] = {}  # by name

    @classmethod
    def accepts(cls, change: NetworkChange) -> bool:
        """Return whether `with_changes` adds the setting of a change."""
        return True

    @model_serializer(mode="wrap")
    def _without_defaults(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        changes = changes_of(self)
        return {name: v for name, v in dump(self).items() if name not in self.network_changes or name in changes}

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Read settings as `StrictModel.from_mapping` does, without unknown settings that are empty lists.

        Version 0.1.0 recorded settings of extras also where they were not set.
        """
        return super().from_mapping(_without_unset(cls, values))


def _without_unset(kind: type[Changeable], values: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in values.items() if name in kind.model_fields or value != []}
    group = _evaluation_of(kind)
    if group is not None and isinstance(kept.get("evaluation"), Mapping):
        kept["evaluation"] = _without_unset(group, kept["evaluation"])
    return kept


def _evaluation_of(kind: type[Changeable]) -> type[Changeable] | None:
    """The type of the settings of evaluations; None if the settings have no such group."""
    field = kind.model_fields.get("evaluation")
    found = field.annotation if field is not None else None
    return found if isinstance(found, type) and issubclass(found, Changeable) else None


Settings = TypeVar("Settings", bound=StrictModel)
# A change of one of these names could not be imported as a module beside them.
_MODULES_OF_CLIENT = {file.stem for file in (Path(__file__).parents[1] / "client" / "ablations_task").glob("*.py")}


def installed_changes() -> dict[str, NetworkChange]:
    """The changes that extras and packages add, by name, without those of packages that do not work."""
    found = {}
    for name in added("changes"):
        with contextlib.suppress(ExtensionError):  # `broken_change` names the package where the setting is used
            found[name] = _loaded(name)
    return found


def _loaded(name: str) -> NetworkChange:
    """The change of that name. Raises ExtensionError if it cannot be used."""
    place = added("changes")[name]
    if name in _MODULES_OF_CLIENT:
        raise ExtensionError(
            f"The change of networks {name} ({place}) has the name of a module of ablations_task, which users' "
            "functions import. Rename its entry point."
        )
    change: NetworkChange = load(place)
    return change


def broken_change(name: str) -> str:
    """Return why the change of that name in an installed package cannot be used; "" for another name."""
    if name in added("changes"):
        try:
            _loaded(name)
        except ExtensionError as error:
            return str(error)
    return ""


def why_unknown(name: str) -> str:
    """Why a setting that was recorded or queued is unknown here, and what to do. name: dotted."""
    return broken_change(name.rpartition(".")[2]) or (
        f"No installed extra or package has the setting {name}. Install the one that adds it (`modules`: the extra "
        "module_rows), or a version of this program that has the setting."
    )


def recorded_settings(kind: type[Settings], values: Mapping[str, Any], trained: str) -> Settings:
    """Read the settings with which a network was trained. trained: the subject of the message, such as "The run a1".

    Raises UserError for a setting that is unknown here or has another type.
    """
    try:
        return kind.from_mapping(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = ".".join(map(str, first["loc"]))
        why = why_unknown(name) if first["type"] == "extra_forbidden" else f"This version refuses it: {first['msg']}."
        raise UserError(f"{trained} was trained with the setting {name}. {why}") from None


def with_changes(kind: type[Settings]) -> type[Settings]:
    """Add the settings of network changes to a type of settings and its group `evaluation`, if it is `Changeable`."""
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
    """The values of the network changes that settings declare, by name."""
    values = {name: getattr(settings, name) for name in settings.network_changes}
    return {name: value for name, value in values.items() if value != settings.network_changes[name].default}


def all_settings(config: StrictModel) -> dict[str, Any]:
    """All settings by dotted name, also those of network changes that are not set, which a dump leaves out."""
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
    """Change a network in place; return facts for the record.

    settings: of the run, whose type has the changes. values: by name of the change. The rest as in
    `NetworkChange.apply`.
    """
    facts: dict[str, Any] = {}
    for name, value in values.items():
        facts |= settings.network_changes[name].apply(value, model, batches, saved=saved, seed=seed)
    return facts
