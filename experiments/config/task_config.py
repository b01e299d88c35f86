"""The base class of the configurations of all tasks, and the roles of their settings. Imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from experiments.config.network_change import NetworkChange
from experiments.dotted import flatten
from model.strict import StrictModel

GIVEN_ELSEWHERE = {
    "task": "it is the study's `task`",
    "seed": "seeds are 1..N: use `seeds`, or --seeds N",
}


@dataclass(frozen=True)
class SettingRoles:
    """Settings that have a special meaning for the program. Names are dotted; a name that ends in a dot is a group.

    not_in_run_id: settings that are not part of run_id, because the trained weights do not depend on them.
    not_in_lineage: settings that may differ between a run and a longer run that continues it.
    steps: the setting with the number of training steps; "" if there is none.
    frozen_defaults: whether the defaults never change. The user of a trainer may change its defaults at any time. A run
        of such a trainer is therefore also compared with the settings that it recorded (store/run_names.py).
    given_elsewhere: settings that rows cannot set → the place where they are set, as a text for messages.
    """

    not_in_run_id: tuple[str, ...] = ()
    not_in_lineage: tuple[str, ...] = ()
    steps: str = ""
    frozen_defaults: bool = False
    given_elsewhere: Mapping[str, str] = field(default_factory=lambda: GIVEN_ELSEWHERE)


class TaskConfig(StrictModel):
    """Base class of the configurations of runs. Each task adds its settings.

    experiments/tasks/own/function.py adds the settings of a user's function.
    """

    setting_roles: ClassVar[SettingRoles] = SettingRoles()
    network_changes: ClassVar[Mapping[str, NetworkChange]] = {}  # name of the setting → network change

    task: str = ""
    seed: int = Field(1, ge=0)

    def roles(self) -> SettingRoles:
        """Return the roles of the settings in this configuration. They may depend on the values of settings."""
        return self.setting_roles

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return those of the named settings that have no effect in this configuration."""
        return []

    def why_unread(self, name: str) -> str:
        """Return why a setting from `unread` has no effect, and in which configurations it would have one."""
        raise KeyError(name)

    def described(self) -> list[str]:
        """Return lines that explain abbreviated settings, such as the layers described by model.encoder."""
        return []


def total_steps(config: TaskConfig) -> int | None:
    """Return the number of training steps; None if no setting has this number as an integer."""
    value = dict(flatten(config)).get(config.setting_roles.steps)
    return value if isinstance(value, int) else None
