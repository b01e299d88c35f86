"""What a task, a training and an evaluation get to know of the attempt that they run in. Imports no torch."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.device_spec import DeviceSpec
from experiments.run_spec import RunSpec
from experiments.store.retention import Keep


@dataclass
class AttemptContext:
    """One attempt as its child hands it to the task: where to write, where to report, and what to continue from."""

    spec: RunSpec
    store: Path
    folder: Path  # the attempt's folder, the only place to write
    device: DeviceSpec
    emit: Callable[..., None]  # emit("metrics", step=…, metrics={…}): one event (experiments/events/lines.py)
    should_stop: Callable[[], bool]  # call it every step; if true, save a checkpoint and raise errors.Preempted
    earlier: Sequence[Path] = ()  # folders of earlier attempts (and of shorter runs), newest first: read only
    pinned: Mapping[str, Any] = field(default_factory=dict)  # settings resolved by the first attempt: precision …
    code_digest: str = ""  # digest of the training code: checkpoints of other code are not resumed
    keeps: Sequence[Keep] = ()  # checkpoints that evaluations of other rows and studies need (store/retention.py)
    rank: int = 0  # of the device.count processes that train together: rank 0 starts, reports and saves
    port: int = 0  # the port at which the other ranks find rank 0
    start_ranks: Callable[[int], Any] | None = None  # of rank 0: starts the others (training/ranks.py: Others)
    limit: int | None = None  # examples of each set that an evaluation takes, for `run --smoke`; None: all
    members: Sequence[Path] = ()  # of an ensemble: folders of the attempts that trained its members
    start: Path | None = None  # of a branch: the checkpoint of its parent run with which it begins
