"""A run's settings without the code of its task: a configuration type made from a plan's description.

Only built-in tasks are loaded by a name from a file; a user's module named there is not. Imports no torch.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, create_model

from experiments.config import SettingRoles, TaskConfig
from experiments.tasks.load import is_built_in, load_task
from model.section import Section

_ROLES = ("not_in_run_id", "not_in_lineage", "steps", "frozen_defaults")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


def describe(config_type: type[TaskConfig]) -> dict[str, Any]:
    """Defaults and roles, for `recorded_type`."""
    roles = config_type.setting_roles
    return {
        "defaults": config_type().model_dump(mode="json"),
        "roles": {name: getattr(roles, name) for name in _ROLES},
    }


def recorded_type(task: str, described: Mapping[str, Any] | None, example: Mapping[str, Any]) -> type[TaskConfig]:
    """The configuration type of a task by name: the task's own if that is built in, else as described.

    `example` is a configuration, for a plan of an earlier version, which describes nothing. Raises ValueError.
    """
    if is_built_in(task):
        return load_task(task).config_type
    described = described or {"defaults": example, "roles": {}}
    roles = described["roles"]
    settings = {name: value for name, value in described["defaults"].items() if name not in TaskConfig.model_fields}
    made = create_model("Recorded", __base__=TaskConfig, __module__=__name__, **_fields(settings))
    made.setting_roles = SettingRoles(
        tuple(map(str, roles.get("not_in_run_id", ()))),
        tuple(map(str, roles.get("not_in_lineage", ()))),
        steps=str(roles.get("steps", "")),
        frozen_defaults=bool(roles.get("frozen_defaults", False)),
    )
    return made


def _fields(values: Mapping[str, Any]) -> Any:
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if not _NAME.fullmatch(name) or hasattr(BaseModel, name):
            raise ValueError(f"no setting may be called {name[:80]!r}")
        if isinstance(value, Mapping):
            kind = create_model("RecordedGroup", __base__=Section, __module__=__name__, **_fields(value))
            fields[name] = (kind, kind())
        else:
            fields[name] = (Any, value)
    return fields
