"""A row of a study as it will run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ablations.study.variation import Variation
from experiments.config import TaskConfig


@dataclass(frozen=True)
class Replaced:
    """A value declared by a row and replaced by the profile or the command line."""

    row: str
    name: str
    declared: Any
    value: Any
    by: str


@dataclass(frozen=True)
class PlannedRow:
    """A row as it will run. `config` has the first seed; the row's other runs differ only in the seed."""

    variation: Variation
    config: TaskConfig
    seeds: tuple[int, ...]
    overrides: Mapping[str, Any]  # changes from base, after scaling, by dotted name
    replaced: tuple[Replaced, ...]
    repeated_by: tuple[str, ...] = ()  # rows of designs that equal this one and are left out
    trunk: "PlannedRow | None" = None  # of a branch: the row that it begins with, with its own seeds
    shared_steps: int = 0  # of a branch: the steps that its trunk trains

    def config_of(self, seed: int) -> TaskConfig:
        """The configuration with another seed."""
        return self.config.model_copy(update={"seed": seed})
