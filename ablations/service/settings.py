"""The settings of a task: name, default, allowed values and meaning, from its configuration type."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from experiments.config import GIVEN_ELSEWHERE
from experiments.tasks.base import Task

BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}  # of JSON Schema
TYPES = {"integer": "integer", "number": "number", "string": "text", "boolean": "true or false", "array": "list"}


@dataclass(frozen=True)
class Setting:
    """One setting. `default`: a value of JSON; None: unset."""

    name: str  # dotted, as in `set` and --set
    default: Any
    values: str  # what is allowed, in words
    meaning: str  # "" where the task's author wrote none

    @property
    def assignment(self) -> str:
        """Name and default, as a line of a study file; `unset` cannot be written there."""
        return f"{self.name} = {'unset' if self.default is None else json.dumps(self.default, ensure_ascii=False)}"


def settings_of(task: Task) -> list[Setting]:
    """Every setting of a task that a row may change, in the order of its configuration."""
    schema = task.config_type.model_json_schema()
    values = task.config_type().model_dump(mode="json")
    return list(_settings(schema, values, schema.get("$defs", {}), ""))


def _settings(
    schema: Mapping[str, Any], values: Mapping[str, Any], parts: Mapping[str, Any], prefix: str
) -> Iterator[Setting]:
    for name, about in schema.get("properties", {}).items():
        if not prefix and name in GIVEN_ELSEWHERE:
            continue
        part = _resolved(about, parts)
        if "properties" in part:
            yield from _settings(part, values[name], parts, f"{prefix}{name}.")
        else:
            meaning = about.get("description", part.get("description", ""))
            yield Setting(f"{prefix}{name}", values[name], _words(part, parts), " ".join(meaning.split()))


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
