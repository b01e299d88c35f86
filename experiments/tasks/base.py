"""The Task contract: what the harness asks of anything that can be trained. Imports no torch.

A task is one object. Its planning half (`config_type`, `columns`, `inputs`, `evaluations`, `num_params`, `cost`)
runs on a login node and imports no torch. `prepare` runs once in the coordinator's process tree before any run of
that corpus starts. `train` and `evaluate` run in a child process, on the device that their context names.

 - `train` must be resumable: called again with the same config it continues at the last complete checkpoint
   (`context.earlier`), and must reach the numbers of an undisturbed run.
 - `train` writes only below `context.folder`, `evaluate` only below its `folder`; they report through `context.emit`.
 - an evaluation may have parts (`evaluation_code`, `evaluate_part`): likelihood, decode, score. A part reads what the
   parts before it have written, so that each can be made again alone.
 - a mistake of the user's raises UserError; anything else is our bug and keeps its traceback.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from experiments.config import DeviceSpec, RunConfig, TaskConfig, flatten
from experiments.errors import UserError
from experiments.store.keeps import Keep
from experiments.store.provenance import PACKAGES
from experiments.tasks.columns import Column, known_to
from experiments.tasks.own.sources import packages

Progress = Callable[[str, int, int], None]  # what is being done, how many of how many


@dataclass(frozen=True)
class EvaluationSpec:
    """One decode and scoring of a run's weights: `settings` in full, digests of what is decoded."""

    set: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]


@dataclass
class Context:
    """What a child hands to its task."""

    store: Path
    run_id: str
    folder: Path  # of this attempt: the only place to write
    inputs: Mapping[str, str]  # the task's digests of what training reads
    device: DeviceSpec
    emit: Callable[..., None]  # emit("metrics", step=…, metrics={…}): one event (experiments/events/kinds.py)
    should_stop: Callable[[], bool]  # asked every step: save a checkpoint and raise Preempted (experiments/errors.py)
    earlier: Sequence[Path] = ()  # folders of earlier attempts (and of shorter runs), newest first: read only
    pinned: Mapping[str, Any] = field(default_factory=dict)  # what the first attempt resolved: precision, micro_batch …
    code_digest: str = ""  # of the code that trains: a checkpoint of another one is not resumed
    keeps: Sequence[
        Keep
    ] = ()  # what evaluations of other rows and studies ask of the training (experiments/store/keeps.py)
    rank: int = 0  # of the device.count processes that train together: rank 0 starts, tells and saves
    port: int = 0  # where the other ranks find rank 0


class Task(ABC):
    """Typed for any configuration: a task names its own `config_type`, and its methods are given that."""

    name: str
    config_type: type[TaskConfig] = RunConfig
    columns: tuple[Column, ...]
    # Modules by dotted name, or files by path, in which training begins: a change in them, or in what they import,
    # makes finished runs stale (experiments/store/code.py).
    training_code: tuple[str, ...] = ()
    # The same for each part of an evaluation, in the order in which the parts are made; a stale one is renewed alone.
    evaluation_code: Mapping[str, tuple[str, ...]] = {"evaluate": ()}
    part_reads: Mapping[str, tuple[str, ...]] = {}  # part → the parts whose output it reads
    part_settings: Mapping[str, tuple[str, ...]] = {}  # part → the settings of an evaluation that it reads, if not all
    # Settings by dotted name (a group ends in a dot) that `inputs` and `prepare` look at: they are called once for all
    # configurations that agree in these. None: in all but the seed.
    inputs_read: tuple[str, ...] | None = None
    prepare_reads: tuple[str, ...] | None = None
    folder: Path | None = None  # where the study lies; None for a built-in one

    def with_columns(self, columns: Sequence[Column]) -> Self:
        """This task with the columns that a study declares; of its own metrics it knows how they are compared."""
        changed = copy.copy(self)
        changed.columns = known_to(columns, self.columns)
        return changed

    def with_settings(self, settings: Mapping[str, Any]) -> Self:
        """This task for a study's [base] or for a run's configuration, nested.

        Only a task without a configuration of its own (experiments/tasks/own/command.py) makes something of them.
        """
        return self

    def packages(self) -> Sequence[str] | None:
        """Names under which the code imports the packages that its numbers depend on; None: another program's."""
        uses_ours = any(not name.startswith("/") for name in self.training_code)
        return (*(PACKAGES if uses_ours else ()), *packages(self.training_code))

    @abstractmethod
    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        """Digests of what training reads, by name; they enter run_id. Raises UserError if it cannot be read."""

    @abstractmethod
    def evaluations(self, config: Any, store: Path) -> list[EvaluationSpec]:
        """What `config.evaluation` asks for, one per set, in the table's order."""

    @abstractmethod
    def num_params(self, config: Any) -> int | None:
        """Parameters of the model, from the configuration alone; None if only the trained model tells."""

    @abstractmethod
    def cost(self, config: Any) -> float:
        """Predicted floating-point operations of the training: for longest-first placement and `plan`; 0: unknown."""

    def memory_bytes(self, config: Any, kind: str) -> float:
        """Most memory of the training on a "cpu" or a "cuda" device, predicted; 0: unknown."""
        return 0.0

    def least_memory_bytes(self, config: Any, kind: str) -> float:
        """The same for the smallest micro-batch, which a run that runs out of a GPU's memory comes to in the end."""
        return self.memory_bytes(config, kind)

    def disk_bytes(self, config: Any) -> float:
        """What a finished training leaves on the disk, predicted; 0: unknown."""
        return 0.0

    def obstacles(self, config: Any, store: Path) -> list[UserError]:
        """Why a run of this configuration could not be trained or scored, as far as settings and corpus tell.

        Called by `plan`, and before anything is queued; takes seconds at most, and writes nothing below the store but
        memories of files' hashes.
        """
        return []

    @abstractmethod
    def prepare(self, config: Any, store: Path, progress: Progress) -> dict[str, Any]:
        """Make what runs of this corpus share (tokenizer, arrays) under the store; returns facts for the log.

        Idempotent and safe to interrupt: half-made files are never taken for whole ones.
        """

    def keeps(self, config: Any) -> tuple[Keep, ...]:
        """What the training must keep for the evaluations that this configuration asks for."""
        return ()

    def serves(self, config: Any, evaluation: EvaluationSpec, weights: Path) -> bool:
        """Whether `weights`, the folder of a finished training, holds what an evaluation takes."""
        return True

    @abstractmethod
    def train(self, config: Any, context: Context) -> dict[str, Any]:
        """Train to the end; weights under `context.folder / "final"`. Returns facts for the run's result."""

    def evaluate(
        self, config: Any, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """Score the weights in `weights` (the folder of the attempt that trained); outputs under `folder`.

        Returns {"metrics": {name: float}, …facts}.
        """
        made: dict[str, Any] = {"metrics": {}}
        for part in self.evaluation_code:
            facts = self.evaluate_part(part, config, evaluation, weights, folder, context)
            made = {**made, **facts, "metrics": {**made["metrics"], **facts.get("metrics", {})}}
        return made

    def evaluate_part(
        self, part: str, config: Any, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """One part of `evaluation_code`. What earlier parts wrote lies in `folder`. Returns facts as `evaluate` does.

        A task of one part need not define this; a task of several defines this in place of `evaluate`.
        """
        if type(self).evaluate is Task.evaluate:
            raise NotImplementedError(f"{type(self).__name__} defines neither evaluate nor evaluate_part")
        return self.evaluate(config, evaluation, weights, folder, context)


def settings_read(config: TaskConfig, names: tuple[str, ...] | None) -> dict[str, Any]:
    """The settings of `inputs_read` or `prepare_reads`, by dotted name."""
    groups = tuple(name for name in names or () if name.endswith("."))
    settings = {key: value for key, value in flatten(config) if key != "seed"}
    return settings if names is None else {k: v for k, v in settings.items() if k in names or k.startswith(groups)}
