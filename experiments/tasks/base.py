"""The Task contract: what the harness needs of anything that can be trained. Imports no torch."""

import copy
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from experiments.attempt_context import AttemptContext
from experiments.config.run_config import RunConfig
from experiments.config.task_config import TaskConfig
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.records import TRAINING
from experiments.run_spec import NO_TRAINER, EvaluationSpec, TrainerSpec
from experiments.store.imports import OURS, imports_of, local_files
from experiments.store.provenance import versions
from experiments.store.results import EvaluationResult, TrainingResult
from experiments.store.retention import Keep
from experiments.tasks.columns import Column, known_to
from experiments.tasks.versions import PARTS
from experiments.tasks.versions import TRAINING as TRAINING_VERSION

Progress = Callable[[str, int, int], None]  # what is being done, done, total


class Use(NamedTuple):
    """Use of a trained model of a task."""

    does: str  # a verb for messages; "translate" and "continue text" are what `ablations generate` can do
    by: str  # module:OBJECT of the class that loads it, `of_run` or from an exported folder by `load`
    readme: str  # how to use an exported model; {name} is its folder


class Task(ABC):
    """Something that can be trained and evaluated, as one object.

    The planning half (`config_type`, `columns`, `inputs`, `evaluations`, `num_params`, `cost`) runs on a login node and
    imports no torch. `prepare` runs once in the coordinator's process, before any run of the corpus starts. `train` and
    `evaluate` run in a child process, on the device of their context.

     - `train` must be resumable: called again with the same config it continues from the last complete checkpoint
       (`context.earlier`), and must reach the numbers of an uninterrupted run.
     - `train` writes only in `context.folder`, `evaluate` only in its `folder` (and what can be shared, once, where
       `prepare` writes); both report through `context.emit`.
     - An evaluation may have parts, each a method with the arguments of `evaluate`: likelihood, decode, score. A part
       reads what the parts before it have written, so that each can be made again alone.
     - The versions of its numeric parts are recorded with the results (experiments/tasks/versions.py). A task of
       another package increments `version` when its numbers change; its earlier results are then stale.
     - A user's mistake raises UserError; any other error is a bug and keeps its traceback.

    A task names its own `config_type`; its methods get a configuration of that type.
    """

    name: str
    version: int = 0  # of the code of a task of another package
    config_type: type[TaskConfig] = RunConfig
    columns: tuple[Column, ...]
    # All that its evaluations record, as patterns; (): whatever the user's program returns.
    metrics: tuple[str, ...] = ()
    evaluation_parts: tuple[str, ...] = ("evaluate",)  # methods, in the order of the parts
    part_reads: Mapping[str, tuple[str, ...]] = {}  # part → the parts whose output it reads
    part_settings: Mapping[str, tuple[str, ...]] = {}  # part → the evaluation settings that it reads, if not all
    # Settings by dotted name (a group ends in a dot) that `inputs` and `prepare` read: both are called once for all
    # configurations that agree in these. None: all settings except the seed.
    inputs_read: tuple[str, ...] | None = None
    prepare_reads: tuple[str, ...] | None = None
    settled_for_table: tuple[str, ...] = ()  # settings whose value "auto" is replaced for all rows (`for_table`)
    init_stats: tuple[str, ...] = ()  # measured before the first and last update: "start" and "end" of the facts
    reuses_parts: bool = True  # whether a part of an evaluation is taken over from another one of the same identity
    ensembles: bool = False  # whether the parts of an evaluation read `context.members`
    use: Use | None = None  # of a trained model by `ablations generate` and `export`
    folder: Path | None = None  # the study's folder; None for a built-in one
    script: str = ""  # the user's file whose repository is recorded with a run
    trainer: TrainerSpec = NO_TRAINER  # of a user's trainer

    def with_columns(self, columns: Sequence[Column]) -> Self:
        """This task with the columns of a study; how its own metrics are compared is known from its own columns."""
        changed = copy.copy(self)
        changed.columns = known_to(columns, self.columns)
        return changed

    def with_settings(self, settings: Mapping[str, Any], trainer: TrainerSpec = NO_TRAINER) -> Self:
        """This task for a study's [base] or for a run's configuration, nested, and for the facts of its trainer.

        Only a task without a fixed configuration (experiments/tasks/own/command.py) uses the settings.
        """
        return self.with_trainer(trainer)

    def with_trainer(self, trainer: TrainerSpec) -> Self:
        """This task for a run whose trainer has these facts; a built-in task has none."""
        changed = copy.copy(self)
        changed.trainer = trainer
        return changed

    def packages(self) -> Sequence[str] | None:
        """Import names of the packages that the numbers depend on; None if another program computes them.

        Those that the user's files import: neither Python's own nor ours, nor files beside them.
        """
        files = self.code_paths()
        names = {name.partition(".")[0] for file in files for name in imports_of(file)} - {""}  # of relative imports
        beside = {part for file in files for part in (file.stem, file.parent.name)}
        return tuple(sorted(names - beside - {*OURS, "ablations_task"} - sys.stdlib_module_names))

    def code_paths(self) -> tuple[Path, ...]:
        """The files of the code that trains, where that is not this program's own."""
        file = Path(str(sys.modules[type(self).__module__].__file__))
        ours = type(self).__module__.partition(".")[0] in OURS
        return () if ours else tuple(local_files([file]))

    @property
    def code(self) -> Mapping[str, str]:
        """The version of the code of each part of an evaluation (experiments/tasks/versions.py)."""
        versions = {part: PARTS.get(part, PARTS["evaluate"]) for part in self.evaluation_parts}
        return {part: self._version(name, version) for part, (name, version) in versions.items()}

    def training_code(self, store: Path) -> str:
        """Return an identifier of the code that would train a run now."""
        return self._version(TRAINING, TRAINING_VERSION)

    def changed_code(self, result: TrainingResult, store: Path) -> list[str]:
        """Describe how the code that trained a run has changed; [] if the result is not stale."""
        now = self.training_code(store)
        return [] if result.code_digest == now else [f"training code {result.code_digest or 'unknown'}, now {now}"]

    def _version(self, part: str, version: int) -> str:
        return f"{part}-{version}{f' {self.name}-{self.version}' if self.version else ''}"

    def versions(self) -> dict[str, str]:
        """Versions of Python and of these packages, as the numbers were computed with."""
        return versions(self.packages())

    @abstractmethod
    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        """Digests of the training inputs, by name; part of run_id. Raises UserError for unreadable inputs."""

    @abstractmethod
    def evaluations(self, config: Any, store: Path) -> list[EvaluationSpec]:
        """The evaluations of `config.evaluation`, one per set, in the table's order."""

    @abstractmethod
    def num_params(self, config: Any) -> int | None:
        """Number of parameters from the configuration alone; None if only the trained model shows it."""

    @abstractmethod
    def cost(self, config: Any) -> float:
        """Predicted floating-point operations of the training, for longest-first placement and `plan`; 0: unknown."""

    def memory_bytes(self, config: Any, kind: str) -> float:
        """Predicted peak memory of the training on a "cpu" or a "cuda" device; 0: unknown."""
        return 0.0

    def least_memory_bytes(self, config: Any, kind: str, *, limited: bool = False) -> float:
        """The same with the smallest micro-batch, which a run reaches after running out of memory.

        limited: on a processor with a limit for the run; without one, running out of main memory is not reported.
        """
        return self.memory_bytes(config, kind)

    def precisions(self, config: Any, kind: str) -> tuple[str, str]:
        """Arithmetic of training and of scoring on this machine's devices of a kind, on which their times depend.

        "auto" where only the device knows; "" where the task has no such setting.
        """
        return "", ""

    def disk_bytes(self, config: Any) -> float:
        """Predicted disk space of a finished training; 0: unknown."""
        return 0.0

    def preflight(self, config: Any, store: Path) -> list[UserError]:
        """Reasons, from settings and corpus, why a run of this configuration cannot be trained or scored.

        Called by `plan`, and before anything is queued. Takes seconds at most, and writes nothing in the store except
        remembered file hashes.
        """
        return []

    def device_preflight(self, config: Any, kind: str, *, trained: bool) -> list[UserError]:
        """Reasons why this machine's devices of a kind ("cpu" or "cuda") cannot train or score a run.

        trained: it is only scored. Takes seconds at most.
        """
        return []

    def device_warnings(self, config: Any, kind: str, *, trained: bool) -> list[str]:
        """Return messages for work that these devices can do only slowly. Arguments as in `device_preflight`."""
        return []

    def not_a_branch(self, parent_run: Any, config: Any, step: int) -> str:
        """Return the reason why a run of `config` cannot start from a run of `parent_run` after a step; "" if it can.

        A task whose `train` begins with `context.start` defines it.
        """
        return f"the task {self.name} cannot start a training from the state of another run"

    def for_table(self, setting: str, configs: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the value of "auto" for a setting of `settled_for_table` in a table, and the reason in a sentence.

        configs: of all rows that ask for it, by key, whether they are selected or not.
        """
        raise NotImplementedError(setting)

    @abstractmethod
    def prepare(self, config: Any, store: Path, progress: Progress) -> dict[str, Any]:
        """Create what runs of this corpus share (tokenizer, arrays) in the store; returns facts for the log.

        Idempotent and safe to interrupt: incomplete files are never used.
        """

    def keeps(self, config: Any) -> tuple[Keep, ...]:
        """The checkpoints that the training must keep for this configuration's evaluations."""
        return ()

    def serves(self, evaluation: EvaluationSpec, weights: Path) -> bool:
        """Return whether `weights`, the folder of a finished training, has what an evaluation needs."""
        return True

    def unknown_settings(self, config: Any, evaluation: EvaluationSpec) -> list[str]:
        """The settings of a queued evaluation that this installation does not have, so that it cannot make it."""
        return []

    def outdated(self, made: EvaluationResult) -> bool:
        """Return whether to repeat an evaluation without training, because the study reads other numbers of the run."""
        return False

    @abstractmethod
    def train(self, config: Any, context: AttemptContext) -> dict[str, Any]:
        """Train to the end; weights go to `context.folder / "final"`. Returns facts for the run's result."""

    def evaluate(
        self, config: Any, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Score the weights in `weights` (the folder of the attempt that trained); outputs go to `folder`.

        Returns {"metrics": {name: float}, …facts}. A task with several `evaluation_parts` defines those instead: each
        returns such facts, and `folder` has the files of the parts before it.
        """
        if self.evaluation_parts == ("evaluate",):
            raise NotImplementedError(f"{type(self).__name__} defines no evaluate")
        parts = [getattr(self, part) for part in self.evaluation_parts]
        return join_facts(part(config, evaluation, weights, folder, context) for part in parts)


def join_facts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of an evaluation from those of its parts; each part adds metrics."""
    joined: dict[str, Any] = {"metrics": {}}
    for facts in parts:
        joined |= {**facts, "metrics": {**joined["metrics"], **facts.get("metrics", {})}}
    return joined


def settings_read(config: TaskConfig, names: tuple[str, ...] | None) -> dict[str, Any]:
    """The settings of `inputs_read` or `prepare_reads`, by dotted name."""
    groups = tuple(name for name in names or () if name.endswith("."))
    settings = {key: value for key, value in flatten(config) if key != "seed"}
    return settings if names is None else {k: v for k, v in settings.items() if k in names or k.startswith(groups)}
