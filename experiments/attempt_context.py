"""The context of an attempt, which its task uses in training and evaluation.

This module does not import torch.
"""

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
    """Context of one attempt, which the child passes to the task.

    folder: the attempt's folder. The task writes files only to this folder.
    emit: function that reports an event, as in `emit("metrics", step=…, metrics={…})` (experiments/events/lines.py).
    should_stop: function that returns whether the attempt must stop. The task calls it at every step. If it returns
        True, the task saves a checkpoint and raises errors.Preempted.
    code_digest: digest of the training code. Checkpoints of other code are not resumed.
    rank: number of this process among the `device.count` processes that train together. Rank 0 starts the other ranks,
        emits the events and saves the checkpoints.
    port: the port at which the other ranks connect to rank 0.
    start_ranks: function that starts the other ranks (training/ranks.py: OtherRanks). Only rank 0 has this function.
    members: for an ensemble, the folders of the attempts that trained its members.
    start: for a branch, the checkpoint of its parent run from which the training begins.
    """

    attempt: AttemptSpec
    folder: Path
    emit: Callable[..., None]
    should_stop: Callable[[], bool]
    code_digest: str = ""
    rank: int = 0
    port: int = 0
    start_ranks: Callable[[int], Any] | None = None
    members: Sequence[Path] = ()
    start: Path | None = None

    @property
    def spec(self) -> RunSpec:
        """The specification of the run."""
        return self.attempt.spec

    @property
    def device(self) -> DeviceSpec:
        """The devices that are leased to the attempt."""
        return self.attempt.device

    @property
    def store(self) -> Path:
        """The store's folder."""
        return Path(self.attempt.store)

    @property
    def earlier(self) -> list[Path]:
        """The folders of earlier attempts and of shorter runs, the newest first. The task only reads them."""
        return [self.store / path for path in self.attempt.earlier]

    @property
    def keeps(self) -> tuple[Keep, ...]:
        """The checkpoints that evaluations of other rows and other studies need."""
        return union(Keep(*keep) for keep in self.attempt.keeps)
