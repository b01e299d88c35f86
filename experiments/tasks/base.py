"""The base class of tasks: the interface between the program and anything that can be trained.

This module does not import torch.
"""

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

Progress = Callable[[str, int, int], None]  # called with (name of the work, amount done, total amount)


class Use(NamedTuple):
    """A description of how a trained model of a task is used.

    does: a verb for messages. `ablations generate` supports "translate" and "continue text".
    by: module:OBJECT of the class that loads the model. Its method `of_run` loads the model of a run, and `load` loads
        an exported model.
    readme: instructions for the README of an exported model. "{name}" is replaced by the name of its folder.
    """

    does: str
    by: str
    readme: str


class Task(ABC):
    """A task: something that can be trained and evaluated.

    The methods for planning (`inputs`, `evaluations`, `num_params`, `cost` and others) run on a login node and import
    no torch. `prepare` runs in the coordinator's process, once before the runs of a corpus start. `train` and
    `evaluate` run in a child process, on the device of their context. All methods get a configuration of the type
    `config_type`.

     - `train` must be resumable. If it is called again with the same configuration, it continues from the last complete
       checkpoint (`context.earlier`). The result must equal the result of an uninterrupted run.
     - `train` writes only to `context.folder`, and `evaluate` only to its argument `folder`. Data that several runs
       share may be written once to the folder that `prepare` uses. Both methods report through `context.emit`.
     - An evaluation may consist of several parts, such as likelihood, decode and score. Each part is a method with the
       arguments of `evaluate`. A part reads the files of the parts before it, so that it can be repeated alone.
     - The versions of the numeric code are recorded with the results (experiments/tasks/versions.py). A task of another
       package increments `version` when its numbers change. Its earlier results are then stale.
     - A mistake of the user raises UserError. Any other error is a bug and is shown with its traceback.

    version: version of the code of a task of another package.
    metrics: patterns for the names of all metrics that the evaluations record. () for a user's trainer, which may
        return any metric.
    evaluation_parts: names of the methods that make the parts of an evaluation, in order.
    part_reads: part → the parts whose output it reads.
    part_settings: part → the evaluation settings that it reads. A part without an entry reads all settings.
    inputs_read, prepare_reads: the settings that `inputs` and `prepare` read, by dotted name. A name that ends in a dot
        is a group. The methods are called once for all configurations in which these settings are equal. None means all
        settings except the seed.
    settled_for_table: settings whose value "auto" is replaced by one value for all rows of a table (`for_table`).
    init_stats: names of statistics that are measured before the first and before the last update. The facts of a run
        contain them under "start" and "end".
    reuses_parts: whether a part of an evaluation may be copied from a stored part with the same identity.
    ensembles: whether the parts of an evaluation support ensembles, that is, whether they read `context.members`.
    use: how `ablations generate` and `ablations export` use a trained model; None if they do not support the task.
    folder: the study's folder; None for a built-in study.
    script: the user's file. The repository that contains it is recorded with a run.
    """

    name: str
    version: int = 0
    config_type: type[TaskConfig] = RunConfig
    columns: tuple[Column, ...]
    metrics: tuple[str, ...] = ()
    evaluation_parts: tuple[str, ...] = ("evaluate",)
    part_reads: Mapping[str, tuple[str, ...]] = {}
    part_settings: Mapping[str, tuple[str, ...]] = {}
    inputs_read: tuple[str, ...] | None = None
    prepare_reads: tuple[str, ...] | None = None
    settled_for_table: tuple[str, ...] = ()
    init_stats: tuple[str, ...] = ()
    reuses_parts: bool = True
    ensembles: bool = False
    use: Use | None = None
    folder: Path | None = None
    script: str = ""
    trainer: TrainerSpec = NO_TRAINER

    def with_columns(self, columns: Sequence[Column]) -> Self:
        """Return a copy of this task with the columns of a study.

        If a column of the study has a metric of this task, it takes the rules of comparison from the task's column.
        """
        changed = copy.copy(self)
        changed.columns = known_to(columns, self.columns)
        return changed

    def with_settings(self, settings: Mapping[str, Any], trainer: TrainerSpec = NO_TRAINER) -> Self:
        """Return a copy of this task for the settings and the trainer of a study or run.

        settings: the study's [base] or the run's configuration, nested. Only a task whose settings a study declares
            (experiments/tasks/own/command.py) uses them.
        """
        return self.with_trainer(trainer)

    def with_trainer(self, trainer: TrainerSpec) -> Self:
        """Return a copy of this task for a run with this trainer. Built-in tasks have NO_TRAINER."""
        changed = copy.copy(self)
        changed.trainer = trainer
        return changed

    def packages(self) -> Sequence[str] | None:
        """Return the import names of the packages on which the numbers depend; None if another program computes them.

        For a user's code, the result contains the packages that its files import. The result excludes the standard
        library, this program, and the user's modules in the same folders.
        """
        files = self.code_paths()
        names = {name.partition(".")[0] for file in files for name in imports_of(file)} - {""}  # "": relative imports
        beside = {part for file in files for part in (file.stem, file.parent.name)}
        return tuple(sorted(names - beside - {*OURS, "ablations_task"} - sys.stdlib_module_names))

    def code_paths(self) -> tuple[Path, ...]:
        """Return the files of the training code, without the files of this program."""
        file = Path(str(sys.modules[type(self).__module__].__file__))
        ours = type(self).__module__.partition(".")[0] in OURS
        return () if ours else tuple(local_files([file]))

    @property
    def code(self) -> Mapping[str, str]:
        """The version of the code of each part of an evaluation (experiments/tasks/versions.py), by part."""
        versions = {part: PARTS.get(part, PARTS["evaluate"]) for part in self.evaluation_parts}
        return {part: self._version(name, version) for part, (name, version) in versions.items()}

    def training_code(self, store: Path) -> str:
        """Return an identifier of the present training code, such as a digest."""
        return self._version(TRAINING, TRAINING_VERSION)

    def changed_code(self, result: TrainingResult, store: Path) -> list[str]:
        """Return a description of each change of the code since it trained a run; [] if the result is not stale."""
        now = self.training_code(store)
        return [] if result.code_digest == now else [f"training code {result.code_digest or 'unknown'}, now {now}"]

    def _version(self, part: str, version: int) -> str:
        return f"{part}-{version}{f' {self.name}-{self.version}' if self.version else ''}"

    def versions(self) -> dict[str, str]:
        """Return the present versions of Python and of the packages on which the numbers depend."""
        return versions(self.packages())

    @abstractmethod
    def inputs(self, config: Any, store: Path) -> dict[str, str]:
        """Return digests of the training inputs, by name. The digests are part of run_id.

        Raises UserError if an input cannot be read.
        """

    @abstractmethod
    def evaluations(self, config: Any, store: Path) -> list[EvaluationSpec]:
        """Return the evaluations of `config.evaluation`, one per set, in the order of the table."""

    @abstractmethod
    def num_params(self, config: Any) -> int | None:
        """Return the number of parameters; None if it is unknown before the training."""

    @abstractmethod
    def cost(self, config: Any) -> float:
        """Predict the floating-point operations of the training; 0 if unknown.

        The coordinator uses the prediction to start the longest runs first, and `ablations plan` to predict times.
        """

    def memory_bytes(self, config: Any, kind: str) -> float:
        """Predict the peak memory of the training in bytes; 0 if unknown. kind: "cpu" or "cuda"."""
        return 0.0

    def least_memory_bytes(self, config: Any, kind: str, *, limited: bool = False) -> float:
        """Predict the peak memory of the training, in bytes, if it uses its smallest micro-batch.

        After a run has run out of memory, it continues with smaller micro-batches.

        limited: whether the run has a memory limit. On a processor without a limit, the kernel kills the run when main
            memory runs out, so the run cannot reduce its micro-batches.
        """
        return self.memory_bytes(config, kind)

    def precisions(self, config: Any, kind: str) -> tuple[str, str]:
        """Return the precisions of training and of scoring on this machine's devices. Predicted times depend on them.

        "auto" means that only the device decides. "" means that the task has no such setting.

        kind: "cpu" or "cuda".
        """
        return "", ""

    def disk_bytes(self, config: Any) -> float:
        """Predict the disk space of a finished training in bytes; 0 if unknown."""
        return 0.0

    def preflight(self, config: Any, store: Path) -> list[UserError]:
        """Return the reasons, found in the settings and the corpus, why a run cannot be trained or scored.

        `ablations plan` calls this method, and `ablations run` calls it before runs are queued. The method takes
        seconds at most, and writes nothing to the store except cached hashes of files.
        """
        return []

    def device_preflight(self, config: Any, kind: str, *, trained: bool) -> list[UserError]:
        """Return the reasons why this machine's devices cannot train or score a run. The method takes seconds at most.

        kind: "cpu" or "cuda".
        trained: whether the run is trained already and is only scored.
        """
        return []

    def device_warnings(self, config: Any, kind: str, *, trained: bool) -> list[str]:
        """Return warnings about slow computations on this machine's devices. Arguments: see `device_preflight`."""
        return []

    def not_a_branch(self, parent_run: Any, config: Any, step: int) -> str:
        """Return the reason why a run cannot start from the state of another run after `step`; "" if it can.

        A task that supports branches overrides this method. Its `train` begins with the checkpoint `context.start`.

        parent_run, config: the configurations of the other run and of this run.
        """
        return f"the task {self.name} cannot start a training from the state of another run"

    def for_table(self, setting: str, configs: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the value that replaces "auto" in all rows of a table, and a sentence with the reason.

        setting: a setting of `settled_for_table`.
        configs: key of each row whose setting is "auto" → its configuration, including rows that are not selected.
        """
        raise NotImplementedError(setting)

    @abstractmethod
    def prepare(self, config: Any, store: Path, progress: Progress) -> dict[str, Any]:
        """Create the files that all runs of a corpus share, such as the tokenizer. Return facts for the log.

        The method may be called several times and may be interrupted. Incomplete files are never used.
        """

    def keeps(self, config: Any) -> tuple[Keep, ...]:
        """Return the checkpoints that the training must keep for the evaluations of this configuration."""
        return ()

    def serves(self, evaluation: EvaluationSpec, weights: Path) -> bool:
        """Return whether `weights`, the folder of a finished training, has the checkpoints that an evaluation needs."""
        return True

    def unknown_settings(self, config: Any, evaluation: EvaluationSpec) -> list[str]:
        """Return the settings of a queued evaluation that this installation does not know.

        An evaluation with such a setting cannot be made.
        """
        return []

    def outdated(self, made: EvaluationResult) -> bool:
        """Return whether an evaluation must be repeated, because the study now extracts other values from outputs."""
        return False

    @abstractmethod
    def train(self, config: Any, context: AttemptContext) -> dict[str, Any]:
        """Train to the end and write the weights to `context.folder / "final"`. Return facts for the run's result."""

    def evaluate(
        self, config: Any, evaluation: EvaluationSpec, weights: Path, folder: Path, context: AttemptContext
    ) -> dict[str, Any]:
        """Evaluate a set and return {"metrics": {name: float}, …facts}.

        A task with several `evaluation_parts` defines one method for each part instead. Each of these methods returns
        such a dictionary, and finds the files of the earlier parts in `folder`.

        weights: the folder of the attempt that trained.
        folder: the folder for outputs.
        """
        if self.evaluation_parts == ("evaluate",):
            raise NotImplementedError(f"{type(self).__name__} defines no evaluate")
        parts = [getattr(self, part) for part in self.evaluation_parts]
        return join_facts(part(config, evaluation, weights, folder, context) for part in parts)


def join_facts(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the facts of an evaluation's parts. The metrics of all parts are collected under "metrics"."""
    joined: dict[str, Any] = {"metrics": {}}
    for facts in parts:
        joined |= {**facts, "metrics": {**joined["metrics"], **facts.get("metrics", {})}}
    return joined


def settings_read(config: TaskConfig, names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the values of the settings in `Task.inputs_read` or `Task.prepare_reads`, by dotted name."""
    groups = tuple(name for name in names or () if name.endswith("."))
    settings = {key: value for key, value in flatten(config) if key != "seed"}
    return settings if names is None else {k: v for k, v in settings.items() if k in names or k.startswith(groups)}
