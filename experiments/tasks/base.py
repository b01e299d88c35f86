"""The Task contract: what the harness asks of anything that can be trained. Imports no torch.

A task is one object. Its planning half (`config_type`, `columns`, `inputs`, `evaluations`, `num_params`, `cost`)
runs on a login node and imports no torch. `prepare` runs once in the coordinator's process tree before any run of
that corpus starts. `train` and `evaluate` run in a child process, on the device that their context names.

 - `train` must be resumable: called again with the same config it continues at the last complete checkpoint
   (`context.earlier`), and must reach the numbers of an undisturbed run.
 - `train` writes only below `context.folder`, `evaluate` only below its `folder`; they report through `context.emit`.
 - a mistake of the user's raises UserError; anything else is our bug and keeps its traceback.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from experiments.config import DeviceSpec, RunConfig
from experiments.provenance import EVALUATION_CODE, TRAINING_CODE

Progress = Callable[[str, int, int], None]  # what is being done, how many of how many


@dataclass(frozen=True)
class Column:
    """One column of a table: where its number comes from and how it is printed."""

    key: str  # the name in JSON and CSV: "ppl"
    set: str  # the evaluated set: "dev"; "*" for every set but dev
    metric: str  # the metric's name in an evaluation: "perplexity"
    header: str  # the paper's head: "PPL (dev)"
    better: str  # "lower" or "higher"
    digits: int  # after the decimal point
    paper: str = ""  # the key in a variation's `paper` values


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
    emit: Callable[..., None]  # emit("metrics", step=…, loss=…): one event (experiments/events.py)
    should_stop: Callable[[], bool]  # asked every step: save a checkpoint and raise Preempted (experiments/errors.py)
    earlier: Sequence[Path] = ()  # folders of earlier attempts (and of shorter runs), newest first: read only
    pinned: Mapping[str, Any] = field(default_factory=dict)  # what the first attempt resolved: precision, micro_batch …
    code_digest: str = ""  # of the code that trains: a checkpoint of another one is not resumed


class Task(ABC):
    name: ClassVar[str]
    config_type: ClassVar[type[RunConfig]] = RunConfig
    columns: ClassVar[tuple[Column, ...]]
    training_code: ClassVar[tuple[str, ...]] = TRAINING_CODE  # modules whose change makes finished runs stale
    evaluation_code: ClassVar[tuple[str, ...]] = EVALUATION_CODE

    @abstractmethod
    def inputs(self, config: RunConfig, store: Path) -> dict[str, str]:
        """Digests of what training reads, by name; they enter run_id. Raises UserError if it cannot be read."""

    @abstractmethod
    def evaluations(self, config: RunConfig, store: Path) -> list[EvaluationSpec]:
        """What `config.evaluation` asks for, one per set, in the table's order."""

    @abstractmethod
    def num_params(self, config: RunConfig) -> int:
        """Parameters of the model, from the configuration alone."""

    @abstractmethod
    def cost(self, config: RunConfig) -> float:
        """Predicted floating-point operations of the training: for longest-first placement and for `plan`."""

    @abstractmethod
    def prepare(self, config: RunConfig, store: Path, progress: Progress) -> dict[str, Any]:
        """Make what runs of this corpus share (tokenizer, arrays) under the store; returns facts for the log.

        Idempotent and safe to interrupt: half-made files are never taken for whole ones.
        """

    @abstractmethod
    def train(self, config: RunConfig, context: Context) -> dict[str, Any]:
        """Train to the end; weights under `context.folder / "final"`. Returns facts for the run's result."""

    @abstractmethod
    def evaluate(
        self, config: RunConfig, evaluation: EvaluationSpec, weights: Path, folder: Path, context: Context
    ) -> dict[str, Any]:
        """Score the weights in `weights` (the folder of the attempt that trained); outputs under `folder`.

        Returns {"metrics": {name: float}, …facts}.
        """
