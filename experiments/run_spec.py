"""The specification of a run: one immutable record that is used from the plan to the result.

The plan makes a `RunSpec`. The queue, the attempt and the result store it unchanged, and add their own fields.

This module does not import torch.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from experiments.config.task_config import TaskConfig, total_steps
from experiments.identity import (
    NO_SEED,
    ParentRun,
    eval_identity,
    imported_in,
    lineage,
    members_in,
    parent_run_in,
)

T = TypeVar("T")


@dataclass(frozen=True)
class EvaluationSpec:
    """One decoding and scoring of a run's weights.

    settings: all evaluation settings.
    inputs: digests of the evaluated set.
    promised: the metrics of a user's trainer that the study prints, such as "dev.accuracy", or "accuracy" if the study
        prints only one set. The metrics are not part of eval_id, so another metric does not require another evaluation.
    eval_id: the identity; "" until `named` has set it.
    """

    set: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    promised: tuple[str, ...] = ()
    eval_id: str = ""

    def named(self, run_id: str) -> Self:
        """Return this evaluation with its eval_id for a run."""
        return replace(self, eval_id=eval_identity(run_id, self.settings, self.inputs))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read an evaluation from JSON. Raises TypeError for missing and for unknown fields."""
        return cls(**{**values, "promised": tuple(values.get("promised", ()))})


@dataclass(frozen=True)
class TrainerSpec:
    """A user's trainer: its command, the patterns that read its output, and its code. No field is a setting."""

    command: str = ""
    patterns: tuple[tuple[str, ...], ...] = ()  # (set, metric, regular expression, the match to use)
    progress: str = ""  # regular expression for progress in the output
    links: tuple[str, ...] = ()  # entries of the study's folder that are linked into the run's folder
    globs: tuple[str, ...] = ()  # patterns for further files of the trainer's code
    tree: str = ""  # git's digest of the code's tree, if the study has rows that change code
    base: str = ""  # git's digest of the tree without the row's patch
    lines: int = 0  # number of lines that the row's patch changes

    @staticmethod
    def from_json(values: object) -> "TrainerSpec":
        """Read a record in which fields may be missing. Raises ValueError for wrong types."""
        return _validated(_trainer_reader(), values)

    @property
    def trees(self) -> tuple[str, ...]:
        """The digests of the trees that the run and its record need."""
        return tuple(tree for tree in (self.tree, self.base) if tree)

    def to_json(self) -> dict[str, Any]:
        """Return the fields that are not empty. `from_json` reads them."""
        return {name: value for name, value in asdict(self).items() if value}


NO_TRAINER = TrainerSpec()  # the trainer of a built-in task
# Version 0.1.0 recorded these fields among the settings: name of the setting → field of TrainerSpec.
_FACTS = {
    "command": "command",
    "output_patterns": "patterns",
    "output_progress": "progress",
    "folder_links": "links",
    "code_globs": "globs",
    "code_tree": "tree",
    "code_base": "base",
    "code_lines": "lines",
}
_OF_FUNCTIONS = ("folder_links", "code_globs", "code_tree", "code_base", "code_lines")


def separate(settings: Mapping[str, Any], task: str) -> tuple[dict[str, Any], TrainerSpec]:
    """Separate the settings of a run from the fields of TrainerSpec. Version 0.1.0 recorded them together.

    Raises ValueError if a field of TrainerSpec has a wrong type.
    """
    names = tuple(_FACTS) if task == "command" else _OF_FUNCTIONS if ":" in task else ()
    facts = {_FACTS[name]: settings[name] for name in names if name in settings}
    return {name: value for name, value in settings.items() if name not in names}, TrainerSpec.from_json(facts)


@dataclass(frozen=True)
class RunSpec:
    """The specification of a run: one training with one seed, or one ensemble, which trains nothing.

    config: all settings, nested, including task and seed.
    inputs: digests of the training inputs, and the run_ids of the members or the parent run (experiments/identity.py).
    named_by: for a user's trainer, the settings that are part of run_id (store/run_names.py).
    steps: number of optimizer updates, including those of the parent run. None for an ensemble, or if it is unknown.
    num_params: number of parameters; for an ensemble, of all members together. None if it is unknown before training.
    cost: predicted floating-point operations of the training, without the steps of the parent run. 0 if unknown.
    folder: the study's folder, which contains the code of a user's task; "" for a built-in study.
    python: the interpreter of a user's function, as the study names it; "" for the interpreter of this program.
    lineage: equal for runs that may continue each other (experiments/identity.py).
    """

    run_id: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str]
    named_by: Mapping[str, Any] | None = None
    steps: int | None = None
    num_params: int | None = None
    cost: float = 0.0
    folder: str = ""
    python: str = ""
    lineage: str = ""
    trainer: TrainerSpec = NO_TRAINER

    @property
    def task(self) -> str:
        """The name of the task that trains the run."""
        return str(self.config.get("task", ""))

    @property
    def seed(self) -> int:
        """The seed; NO_SEED for an ensemble."""
        return NO_SEED if self.members else int(self.config.get("seed", 1))

    @property
    def members(self) -> tuple[str, ...]:
        """The run_ids of an ensemble's members; () for a training."""
        return members_in(self.inputs)

    @property
    def imported(self) -> bool:
        """Whether the run was imported. An imported run was trained elsewhere and is not trained here."""
        return imported_in(self.inputs)

    @property
    def parent_run(self) -> ParentRun | None:
        """The parent run of a branch; None for other runs."""
        return parent_run_in(self.inputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """The run_ids of the runs that must be trained first: members of an ensemble, or the parent run of a branch."""
        return (*self.members, *([self.parent_run.run_id] if self.parent_run else []))

    @property
    def own_steps(self) -> int | None:
        """The number of steps without those of the parent run; 0 for an ensemble, None if unknown."""
        if self.members:
            return 0
        return self.steps if self.steps is None or self.parent_run is None else self.steps - self.parent_run.step

    @property
    def portable(self) -> Self:
        """This record without the study's folder, for files in a store, which may be moved to another machine."""
        return replace(self, folder="")

    def to_json(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)

    @staticmethod
    def from_json(values: object) -> "RunSpec":
        """Read a record that `to_json` has written. Raises ValueError for missing fields and for wrong types."""
        return _validated(_reader(), values)


@cache
def _reader() -> TypeAdapter[RunSpec]:
    return TypeAdapter(RunSpec)


@cache
def _trainer_reader() -> TypeAdapter[TrainerSpec]:
    return TypeAdapter(TrainerSpec)


def _validated(reader: TypeAdapter[T], values: object) -> T:
    try:
        return reader.validate_python(values)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}") from None


def recorded_spec(record: Mapping[str, Any]) -> RunSpec:
    """Return the RunSpec from a record of a store or queue.

    In a record of version 0.1.0, the fields of RunSpec are fields of the record itself.

    Raises ValueError for missing fields and for wrong types.
    """
    names = {field.name for field in fields(RunSpec)}
    given = record.get("spec") or {name: record[name] for name in names if name in record}
    spec = RunSpec.from_json(given)
    if "trainer" in given:
        return spec
    settings, trainer = separate(spec.config, spec.task)
    return replace(spec, config=settings, trainer=trainer)


def run_spec(
    config: TaskConfig, run_id: str, inputs: Mapping[str, str], trainer: TrainerSpec = NO_TRAINER, **fields: Any
) -> RunSpec:
    """Return the RunSpec of a run with validated settings. fields: the fields that do not follow from the settings."""
    of_settings: dict[str, Any] = {
        "steps": None if members_in(inputs) else total_steps(config),
        "lineage": lineage(config, inputs, trainer.command),
        "trainer": trainer,
    }
    return RunSpec(run_id, config.model_dump(mode="json"), dict(inputs), **{**of_settings, **fields})
