"""Context of an attempt for its task, training and evaluation. Imports no torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.device_spec import DeviceSpec
from experiments.run_spec import RunSpec
from experiments.store.retention import Keep, union
from experiments.store.spec import AttemptSpec


@dataclass
class AttemptContext:
    """One attempt as its child hands it to the task: what is ordered, where to write and report, where to begin."""

    attempt: AttemptSpec
    folder: Path  # the attempt's folder, the only place to write
    emit: Callable[..., None]  # emit("metrics", step=…, metrics={…}): one event (experiments/events/lines.py)
    should_stop: Callable[[], bool]  # call it every step; if true, save a checkpoint and raise errors.Preempted
    code_digest: str = ""  # digest of the training code: checkpoints of other code are not resumed
    rank: int = 0  # of the device.count processes that train together: rank 0 starts, reports and saves
    port: int = 0  # the port at which the other ranks find rank 0
    start_ranks: Callable[[int], Any] | None = None  # of rank 0: starts the others (training/ranks.py: Others)
    members: Sequence[Path] = ()  # of an ensemble: folders of the attempts that trained its members
    start: Path | None = None  # of a branch: the checkpoint of its parent run with which it begins

    @property
    def spec(self) -> RunSpec:
        """The run."""
        return self.attempt.spec

    @property
    def device(self) -> DeviceSpec:
        """The device that the attempt has."""
        return self.attempt.device

    @property
    def store(self) -> Path:
        """The store's folder."""
        return Path(self.attempt.store)

    @property
    def earlier(self) -> list[Path]:
        """Folders of earlier attempts, and of shorter runs, newest first: read only."""
        return [self.store / path for path in self.attempt.earlier]

    @property
    def keeps(self) -> tuple[Keep, ...]:
        """Checkpoints that evaluations of other rows and studies need."""
        return union(Keep(*keep) for keep in self.attempt.keeps)
