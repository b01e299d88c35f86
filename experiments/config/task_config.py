"""The part of a configuration that every task has, and the roles of settings in it. Imports no torch."""

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
    """Settings with a special meaning to the harness. Names are dotted; a name that ends in a dot is a group."""

    not_in_run_id: tuple[str, ...] = ()  # no trained number depends on these
    not_in_lineage: tuple[str, ...] = ()  # may differ between a training and a longer one that continues it
    steps: str = ""  # the setting for the length of a training, used for progress; "": none
    # Whether defaults never change. A user may edit those of a trainer at any time; then a run is also compared with
    # the settings that it recorded (store/run_names.py).
    frozen_defaults: bool = False
    # settings that rows cannot set → where they are set
    given_elsewhere: Mapping[str, str] = field(default_factory=lambda: GIVEN_ELSEWHERE)


class TaskConfig(StrictModel):
    """The part that every configuration has. A task adds its settings (a user's: experiments/tasks/own/function.py)."""

    setting_roles: ClassVar[SettingRoles] = SettingRoles()
    network_changes: ClassVar[Mapping[str, NetworkChange]] = {}  # settings that change the network, by name

    task: str = ""
    seed: int = Field(1, ge=0)

    def roles(self) -> SettingRoles:
        """The roles in this configuration: that of one setting may depend on another."""
        return self.setting_roles

    def unread(self, names: Iterable[str]) -> list[str]:
        """Those of the named settings on which nothing depends in this configuration."""
        return []

    def why_unread(self, name: str) -> str:
        """Return the reason why nothing depends on a setting that is `unread`, and what would read it."""
        raise KeyError(name)

    def described(self) -> list[str]:
        """Explain settings whose text abbreviates more than it says, one line each."""
        return []


def total_steps(config: TaskConfig) -> int | None:
    """Training steps, if a setting gives them as an integer; otherwise None."""
    value = dict(flatten(config)).get(config.setting_roles.steps)
    return value if isinstance(value, int) else None
