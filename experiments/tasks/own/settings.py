"""A user's settings as a configuration of the harness. Their type stays in the trainer's process.

That process describes it (`described` in experiments/client/ablations_task) and checks values by making its own
object of them; here they have the same names, types, defaults and limits.
"""

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Union

from pydantic import Field, create_model, model_validator

from experiments.config import GIVEN_ELSEWHERE, SettingRoles, TaskConfig, unstorable
from experiments.errors import UserError
from model.section import Section

Check = Callable[[Mapping[str, Any]], None]  # of the settings as JSON; raises ValueError for what the user refuses
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


class OwnConfig(TaskConfig):
    """A configuration made by `config_type_of`: the user's settings with `task` and `seed`."""

    settings_check: ClassVar[Check] = staticmethod(lambda values: None)

    @model_validator(mode="after")
    def _accepted_by_its_own_checks(self) -> "OwnConfig":
        type(self).settings_check(settings_of(self))  # so planning refuses what the user's __post_init__ refuses
        return self


def settings_of(config: TaskConfig) -> dict[str, Any]:
    """The user's settings in a configuration, nested, with JSON types only."""
    return {name: value for name, value in config.model_dump(mode="json").items() if name not in GIVEN_ELSEWHERE}


def config_type_of(described: Mapping[str, Any], check: Check, roles: SettingRoles | None = None) -> type[TaskConfig]:
    """The configuration type of described settings. Raises UserError for names that the harness has for itself."""
    roles, name, fields = roles or SettingRoles(), described["name"], _fields(described["fields"])
    taken = [name for name in fields if name in GIVEN_ELSEWHERE or hasattr(OwnConfig, name)]
    if taken:
        raise UserError(
            f"{name}.{taken[0]}: the harness has this name for itself (the task's name and the seed are given by it: "
            "context.seed). Give the setting another name."
        )
    if roles.steps and roles.steps not in fields:
        raise UserError(f"{name} has no setting {roles.steps}, which steps= names.")
    made = create_model(name, __base__=OwnConfig, __module__=__name__, **fields)
    made.setting_roles, made.settings_check = roles, staticmethod(check)
    return made


def _fields(described: Any) -> dict[str, Any]:
    """(type, default) of every setting, by name."""
    found: dict[str, Any] = {}
    for one in described:
        if why := unstorable(one["default"]):
            raise UserError(
                f"The setting {one['name']} has the default {str(one['default'])[:80]}: {why}. Every run of the study "
                "would be recorded with it: take another default, such as None."
            )
        kind = _type(one["kind"])
        default = kind() if "group" in one["kind"] else _restored(one["kind"], one["default"])
        found[one["name"]] = (Annotated[kind, Field(**one["limits"])], Field(default, description=one["about"]))
    return found


def _type(kind: Mapping[str, Any]) -> Any:
    [(name, inner)] = kind.items()
    if name == "simple":
        return _SIMPLE[inner]
    if name == "group":
        return create_model(inner["name"], __base__=Section, __module__=__name__, **_fields(inner["fields"]))
    if name == "literal":
        return Literal[tuple(inner)]
    if name == "union":
        return Union[tuple(_type(one) for one in inner)]  # noqa: UP007 - of any number of types
    if name == "tuple":
        return tuple[tuple(_type(one) for one in inner)]  # type: ignore[misc]
    item = _type(inner)
    return {"list": list[item], "set": set[item], "tuple_of": tuple[item, ...]}[name]  # type: ignore[valid-type]


def _restored(kind: Mapping[str, Any], value: Any) -> Any:
    """A default as its type has it; numbers stay as the user wrote them, since they name runs."""
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
