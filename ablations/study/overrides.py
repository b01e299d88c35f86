"""The settings of a task: their dotted names, a check that refuses unknown names, and a description of each setting."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from experiments.config.network_change import broken_change
from experiments.config.task_config import GIVEN_ELSEWHERE, TaskConfig
from experiments.errors import UserError
from experiments.messages import suggestion


def setting_names(config_type: type[TaskConfig]) -> list[str]:
    """Return the dotted names of all settings that a row may set, in the order of the configuration's fields."""
    given = config_type.setting_roles.given_elsewhere
    return [name for name in _names(config_type) if name not in given]


def _names(config_type: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in config_type.model_fields.items():
        name, kind = field.alias or name, field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _names(kind, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def check_names(
    settings: Iterable[str], known: Iterable[str], where: str, given: Mapping[str, str] = GIVEN_ELSEWHERE
) -> None:
    """Raise UserError for the first unknown name, and suggest similar names.

    given: name of each setting that cannot be set here → where the setting comes from.
    """
    known = list(known)
    names = set(known)
    for name in settings:
        if name in names:
            continue
        if name in given:
            raise UserError(f"{where}: {name} cannot be set here: {given[name]}.")
        inside = [k for k in known if k.startswith(f"{name}.")]
        if inside:
            raise UserError(f"{where}: {name} is a group of settings. Set one of: {', '.join(inside)}.")
        why = broken_change(name.removeprefix("evaluation."))
        raise UserError(f"{where}: there is no setting {name}. {why or suggestion(name, known, 'settings')}")


# Keywords of JSON Schema → signs for the user.
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "array": "list"}


@dataclass(frozen=True)
class DescribedSetting:
    """The description of one setting."""

    name: str  # dotted name, as in `set` and --set
    default: Any  # JSON value; None if unset
    values: str  # allowed values, in words
    meaning: str  # "" if the task's author wrote no description

    @property
    def assignment(self) -> str:
        """Name and default, such as `model.d_ff = 2048`. The default None is written as `unset`."""
        return f"{self.name} = {'unset' if self.default is None else json.dumps(self.default, ensure_ascii=False)}"


def settings_of(config_type: type[TaskConfig]) -> list[DescribedSetting]:
    """Return a description of every setting that a row may change, in the order of the configuration's fields."""
    schema = config_type.model_json_schema()
    values = config_type().model_dump(mode="json")
    return list(_described(schema, values, schema.get("$defs", {}), ""))


def _described(
    schema: Mapping[str, Any], values: Mapping[str, Any], parts: Mapping[str, Any], prefix: str
) -> Iterator[DescribedSetting]:
    for name, about in schema.get("properties", {}).items():
        if not prefix and name in GIVEN_ELSEWHERE:
            continue
        part = _resolved(about, parts)
        if "properties" in part:
            yield from _described(part, values[name], parts, f"{prefix}{name}.")
        else:
            meaning = about.get("description", part.get("description", ""))
            default = values.get(name, about.get("default"))
            yield DescribedSetting(f"{prefix}{name}", default, _words(part, parts), " ".join(meaning.split()))


def _resolved(about: Mapping[str, Any], parts: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = about.get("$ref")
    return {**parts[reference.rpartition("/")[2]], **about} if reference else about


def _words(about: Mapping[str, Any], parts: Mapping[str, Any]) -> str:
    if "anyOf" in about:
        return " or ".join(dict.fromkeys(_words(_resolved(one, parts), parts) for one in about["anyOf"]))
    if "enum" in about or "const" in about:
        return ", ".join(str(value) for value in about.get("enum", [about.get("const")]))
    if about.get("type") == "null":
        return "unset"
    word = TYPES.get(str(about.get("type")), "any value")
    bounds = [f"{sign} {about[key]:g}" for key, sign in BOUNDS.items() if key in about]
    return f"{word} {' and '.join(bounds)}".strip()
