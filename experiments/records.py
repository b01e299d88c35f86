"""Records that cross rooms. Imports nothing of this project."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

RUNNING = "RUNNING"
Member = tuple[str, str, str, str, str]  # study, profile, corpus, row, group


class ChildExit(IntEnum):
    """What the process of one attempt exits with."""

    FINISHED = 0
    FAILED = 1
    PREEMPTED = 3
    DISK_FULL = 4


@dataclass(frozen=True)
class TrackedRun:
    """What tracking needs to know of a run beside its events and results."""

    run_id: str
    status: str  # RUNNING, FINISHED, FAILED, KILLED
    task: str
    config: Mapping[str, Any]
    seed: int
    inputs: Mapping[str, str] = field(default_factory=dict)  # digests of what it trains on
    num_params: int | None = None
    members: tuple[Member, ...] = ()
    error: str = ""
