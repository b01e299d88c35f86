"""Make a configuration type from the type of a user's settings.

The user's type exists only in the trainer's process. That process describes the type (`described` in
experiments/client/ablations_task), and checks values by building an object of the type. The configuration type here
has fields with the same names, types, defaults and limits.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import Field, create_model, model_validator

from experiments.config.network_change import Changeable, NetworkChange, installed_changes
from experiments.config.task_config import GIVEN_ELSEWHERE, SettingRoles, TaskConfig
from experiments.dotted import unstorable
from experiments.errors import UserError
from model.strict import StrictModel

# Function that checks settings, given as JSON, in the trainer's process. It raises ValueError if the user's type
# refuses a value.
Check = Callable[[Mapping[str, Any]], None]
_SIMPLE: dict[str, Any] = {
    "bool": bool, "int": int, "float": float, "str": str, "null": type(None), "any": Any, "path": Path,
    "datetime": datetime, "date": date, "time": time,
}  # fmt: skip
_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "path": Path,
    "datetime": datetime.fromisoformat,
    "date": date.fromisoformat,
    "time": time.fromisoformat,
}


class OwnConfig(Changeable, TaskConfig):
    """Base class of the types that `config_type_of` makes. These types have the user's settings, `task` and `seed`."""

    settings_check: ClassVar[Check] = staticmethod(lambda values: None)

    @classmethod
    def accepts(cls, change: NetworkChange) -> bool:
        return change.client is not None

    @model_validator(mode="after")
    def _accepted_by_its_own_checks(self) -> "OwnConfig":
        type(self).settings_check(settings_of(self))  # raise the errors of the user's __post_init__ when planning
        return self


def settings_of(config: TaskConfig) -> dict[str, Any]:
    """Return the user's settings of a configuration, nested, with JSON types."""
    ours = (*config.setting_roles.given_elsewhere, *config.network_changes)
    return {name: value for name, value in config.model_dump(mode="json").items() if name not in ours}


def config_type_of(described: Mapping[str, Any], check: Check, roles: SettingRoles | None = None) -> type[TaskConfig]:
    """Make a configuration type from the description of a user's settings.

    Raises UserError if a setting has a reserved name, or if `roles.steps` is not the name of a setting.
    """
    roles, name, fields = roles or SettingRoles(), described["name"], _fields(described["fields"])
    changes = installed_changes()
    taken = [name for name in fields if name in (*GIVEN_ELSEWHERE, *changes) or hasattr(OwnConfig, name)]
    if taken:
        raise UserError(
            f"{name}.{taken[0]}: the harness has this name for itself (the task's name and the seed are given by it: "
            f"context.seed; changes of a network: {', '.join(changes) or 'none'}). Give the setting another name."
        )
    if roles.steps and roles.steps not in fields:
        raise UserError(f"steps= names {roles.steps}, but {name} has no such setting.")
    made = create_model(name, __base__=OwnConfig, __module__=__name__, **fields)
    made.setting_roles, made.settings_check = roles, staticmethod(check)
    return made


def _fields(described: Any) -> dict[str, Any]:
    """Return a dict from the names of settings to pydantic fields, as pairs (type, field with default)."""
    fields: dict[str, Any] = {}
    for one in described:
        if why := unstorable(one["default"]):
            raise UserError(
                f"The setting {one['name']} has the default {str(one['default'])[:80]}: {why}. Every run of the study "
                "would be recorded with it: take another default, such as None."
            )
        kind = _type(one["kind"])
        default = kind() if "group" in one["kind"] else _restored(one["kind"], one["default"])
        fields[one["name"]] = (Annotated[kind, Field(**one["limits"])], Field(default, description=one["about"]))
    return fields


def _type(kind: Mapping[str, Any]) -> Any:
    [(name, inner)] = kind.items()
    if name == "simple":
        return _SIMPLE[inner]
    if name == "group":
        return create_model(inner["name"], __base__=StrictModel, __module__=__name__, **_fields(inner["fields"]))
    if name == "literal":
        return Literal[tuple(inner)]
    if name == "union":
        return Union[tuple(_type(one) for one in inner)]  # noqa: UP007 - of any number of types
    if name == "tuple":
        return tuple[tuple(_type(one) for one in inner)]  # type: ignore[misc]
    item = _type(inner)
    return {"list": list[item], "set": set[item], "tuple_of": tuple[item, ...]}[name]  # type: ignore[valid-type]


def _restored(kind: Mapping[str, Any], value: Any) -> Any:
    """Convert a default from JSON to its type. Numbers are not converted, because this could change run_ids."""
    [(name, inner)] = kind.items()
    if name == "simple" and isinstance(value, str) and inner in _FROM_TEXT:
        return _FROM_TEXT[inner](value)
    if name == "union" and value is not None:
        types = [one for one in inner if ("simple" in one) != isinstance(value, list)]
        return _restored(types[0], value) if len(types) == 1 else value
    if isinstance(value, list) and name == "tuple":
        return tuple(_restored(one, item) for one, item in zip(inner, value, strict=False))
    if isinstance(value, list) and name in ("list", "set", "tuple_of"):
        items = [_restored(inner, item) for item in value]
        return {"list": list, "set": set, "tuple_of": tuple}[name](items)
    return value
