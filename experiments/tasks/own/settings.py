"""Convert a user's settings, a dataclass or a pydantic model, to a configuration of the harness, and back."""

import dataclasses
import sys
import types
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar, get_origin, get_type_hints

from pydantic import BaseModel, Field, PydanticUserError, create_model, model_validator
from pydantic_core import PydanticUndefined

from experiments.config import GIVEN_ELSEWHERE, SettingRoles, TaskConfig
from experiments.errors import UserError
from model.section import Section

Settings = TypeVar("Settings")


class OwnConfig(TaskConfig, Generic[Settings]):
    """A configuration made by `config_type_of`: the user's settings with `task` and `seed`."""

    settings_type: ClassVar[Any]

    @model_validator(mode="after")
    def _accepted_by_its_own_checks(self) -> "OwnConfig[Settings]":
        restore(self)  # so planning refuses what the user's __post_init__ or validators refuse
        return self


def config_type_of(settings_type: type, roles: SettingRoles | None = None) -> type[TaskConfig]:
    """The configuration type for a user's settings. Raises UserError if a study file cannot express them."""
    roles = roles or SettingRoles()
    fields = dict(_fields(settings_type, settings_type.__name__))
    taken = [name for name in fields if name in GIVEN_ELSEWHERE or hasattr(OwnConfig, name)]
    if taken:
        raise UserError(
            f"{settings_type.__name__}.{taken[0]}: the harness has this name for itself (the task's name and the seed "
            "are given by it: context.seed). Give the setting another name."
        )
    if roles.steps and roles.steps not in fields:
        raise UserError(f"{settings_type.__name__} has no setting {roles.steps}, which steps= names.")
    try:
        made = create_model(settings_type.__name__, __base__=OwnConfig, __module__=__name__, **fields)
    except PydanticUserError as error:
        raise UserError(
            f"{settings_type.__name__}: a setting has a type that no study file can hold: "
            f"{error.message.splitlines()[0]}"
        ) from error
    made.setting_roles, made.settings_type = roles, settings_type
    return made


def restore(config: BaseModel) -> Any:
    """The user's own object with the configuration's values. Raises the errors of its checks."""
    values = {name: getattr(config, name) for name in type(config).model_fields if name not in GIVEN_ELSEWHERE}
    own = getattr(type(config), "settings_type", None)
    values = {k: restore(v) if hasattr(type(v), "settings_type") else v for k, v in values.items()}
    return own(**values) if own is not None else values


def _fields(settings_type: type, where: str) -> Any:
    """(name, (type, default)) of every setting."""
    if dataclasses.is_dataclass(settings_type):
        yield from _dataclass_fields(settings_type, where)
    elif isinstance(settings_type, type) and issubclass(settings_type, BaseModel):
        for name, field in settings_type.model_fields.items():
            if field.is_required():
                _refuse_required(where, name)
            # its constraints are kept: Field(ge=0), Annotated[…]
            yield name, (_converted(field.annotation, f"{where}.{name}"), _section_default(field, where, name))
    else:
        raise UserError(f"{where}: settings are a dataclass or a pydantic model.")


def _dataclass_fields(settings_type: Any, where: str) -> Any:
    module = sys.modules.get(settings_type.__module__)
    hints = get_type_hints(settings_type, vars(module) if module else None, include_extras=True)
    for field in dataclasses.fields(settings_type):
        if field.default is not dataclasses.MISSING:
            default = field.default
        elif field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            _refuse_required(where, field.name)
        kind = _converted(hints[field.name], f"{where}.{field.name}")
        yield field.name, (kind, _as_group(kind, default))


def _section_default(field: Any, where: str, name: str) -> Any:
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        _refuse_required(where, name)
    kind = _converted(field.annotation, f"{where}.{name}")
    copied = Field(default=_as_group(kind, default), description=field.description)
    copied.metadata = list(field.metadata)
    return copied


def _as_group(kind: Any, default: Any) -> Any:
    if not hasattr(kind, "settings_type"):
        return default
    own = default.__dict__ if not dataclasses.is_dataclass(default) else None
    values = own if own is not None else {f.name: getattr(default, f.name) for f in dataclasses.fields(default)}
    return kind(**{k: _as_group(kind.model_fields[k].annotation, v) for k, v in values.items()})


def _converted(kind: Any, where: str) -> Any:
    """A nested dataclass or model becomes a group of settings; other types stay."""
    if isinstance(kind, type) and (dataclasses.is_dataclass(kind) or issubclass(kind, BaseModel)):
        made = create_model(kind.__name__, __base__=_Group, __module__=__name__, **dict(_fields(kind, where)))
        made.settings_type = kind
        return made
    if kind is dict or get_origin(kind) in (dict, Mapping, types.MappingProxyType):
        raise UserError(f"{where} is a dict: make it a dataclass of its own, so that each entry is a named setting.")
    return kind


class _Group(Section):
    settings_type: ClassVar[Any]


def _refuse_required(where: str, name: str) -> None:
    raise UserError(
        f"{where}.{name} has no default. Every setting needs one: a row is the defaults plus what the study's [base] "
        "and the row change."
    )
