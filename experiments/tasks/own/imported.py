"""The task of studies whose rows were all trained elsewhere (`ablations import`). It trains nothing.

The settings are those that the study declares in [base], as for a command, and the metrics those of its [[metric]].
Imports no torch.
"""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import create_model

from experiments.config import GIVEN_ELSEWHERE, SettingRoles, TaskConfig
from experiments.errors import UserError
from experiments.tasks.base import Context
from experiments.tasks.own.command import fields_of
from experiments.tasks.own.function import OwnTask

_HOW = "Rows of this task are trained elsewhere: write imported = true in the row, and use `ablations import`."


class ImportedConfig(TaskConfig):
    """Created for each study: its settings are those of [base]."""

    setting_roles = SettingRoles()
    task: str = "imported"


class ImportedTask(OwnTask):
    def __init__(self) -> None:
        super().__init__("imported", ImportedConfig)

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """Settings of a study, or of a run's configuration."""
        declared = {name: value for name, value in settings.items() if name not in GIVEN_ELSEWHERE}
        changed = copy.copy(self)
        fields = fields_of(declared)
        changed.config_type = create_model("Imported", __base__=ImportedConfig, __module__=__name__, **fields)
        return changed

    def packages(self) -> None:
        """None: nothing runs here."""

    def obstacles(self, config: Any, store: Path) -> list[UserError]:
        return [UserError(_HOW)]

    def train(self, config: Any, context: Context) -> dict[str, Any]:
        raise UserError(_HOW)


TASK = ImportedTask()
