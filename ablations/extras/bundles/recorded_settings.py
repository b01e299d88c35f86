"""Read the settings of runs without the code of their task: build a configuration type from a description in the plan.

Only built-in tasks are loaded by name. A user's module that a bundle names is never imported.
"""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, create_model

from experiments.config.network_change import Changeable, NetworkChange
from experiments.config.task_config import SettingRoles, TaskConfig
from experiments.tasks.load import is_built_in, load_task
from model.strict import StrictModel

_ROLES = ("not_in_run_id", "not_in_lineage", "steps", "frozen_defaults")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,99}")


def describe(config_type: type[TaskConfig]) -> dict[str, Any]:
    """Return a description of a configuration type for `recorded_type`: defaults, network changes and roles.

    Network changes are recorded only in rows that set them.
    """
    roles = config_type.setting_roles
    return {
        "defaults": config_type().model_dump(mode="json"),
        "changes": {name: change.default for name, change in config_type.network_changes.items()},
        "roles": {name: getattr(roles, name) for name in _ROLES},
    }


class _RecordedSettings(Changeable, TaskConfig):
    """Settings of a run, read by the description in a plan."""


class _RecordedChange(NetworkChange):
    """A network change that the description in a plan names. Readers of the plan never apply it."""

    kind = Any

    def __init__(self, default: Any) -> None:
        self.default = default

    def apply(self, value: Any, model: Any, batches: Any, *, saved: Any, seed: Any) -> dict[str, Any]:
        raise NotImplementedError


def recorded_type(task: str, described: Mapping[str, Any]) -> type[TaskConfig]:
    """Return the configuration type of a built-in task, or build one from the description for any other task.

    Raises ValueError, KeyError or TypeError for an invalid description.
    """
    if is_built_in(task):
        return load_task(task).config_type
    roles = described["roles"]
    settings = {name: value for name, value in described["defaults"].items() if name not in TaskConfig.model_fields}
    changes = described.get("changes", {})
    fields = _fields({**settings, **changes})
    made = create_model("Recorded", __base__=_RecordedSettings, __module__=__name__, **fields)
    made.network_changes = {name: _RecordedChange(default) for name, default in changes.items()}
    made.setting_roles = SettingRoles(
        tuple(map(str, roles["not_in_run_id"])),
        tuple(map(str, roles["not_in_lineage"])),
        steps=str(roles["steps"]),
        frozen_defaults=bool(roles["frozen_defaults"]),
    )
    return made


def _fields(values: Mapping[str, Any]) -> Any:
    fields: dict[str, Any] = {}
    for name, value in values.items():
        if not _NAME.fullmatch(name) or hasattr(BaseModel, name):
            raise ValueError(f"no setting may be called {name[:80]!r}")
        if isinstance(value, Mapping):
            kind = create_model("RecordedGroup", __base__=StrictModel, __module__=__name__, **_fields(value))
            fields[name] = (kind, kind())
        else:
            fields[name] = (Any, value)
    return fields
