"""The description of a run: one frozen record from the plan to the result.

The plan makes a `RunSpec`. The queue, the attempt and the result keep it whole, and add their own fields. Imports no
torch.
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
    """One decoding and scoring of a run's weights: all its settings, and digests of the decoded set.

    promised: the metrics that the study prints of a user's trainer: "dev.accuracy", or "accuracy" if it prints one set
    only. They are in no identity, so that another metric decodes nothing again.
    eval_id: the identity; "" until the run is known (`named`).
    """

    set: str
    settings: Mapping[str, Any]
    inputs: Mapping[str, str]
    promised: tuple[str, ...] = ()
    eval_id: str = ""

    def named(self, run_id: str) -> Self:
        """Return this evaluation of a run, with its identity."""
        return replace(self, eval_id=eval_identity(run_id, self.settings, self.inputs))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Self:
        """Read an evaluation back. Raises TypeError for missing and for unknown fields."""
        return cls(**{**values, "promised": tuple(values.get("promised", ()))})


@dataclass(frozen=True)
class TrainerSpec:
    """Description of a user's trainer: how to start it, how to read its output, its code. None of it is a setting."""

    command: str = ""
    patterns: tuple[tuple[str, ...], ...] = ()  # set, metric, regular expression, and which match to take
    progress: str = ""  # a regular expression
    links: tuple[str, ...] = ()  # entries of the study's folder that are linked into the run's own
    globs: tuple[str, ...] = ()  # further files of its code
    tree: str = ""  # git's digest of the code, if the study has rows that change code
    base: str = ""  # the same without the row's patch
    lines: int = 0  # the size of the row's change

    @staticmethod
    def from_json(values: object) -> "TrainerSpec":
        """Read a record with some of the fields. Raises ValueError for wrong types."""
        return _validated(_trainer_reader(), values)

    @property
    def trees(self) -> tuple[str, ...]:
        """The trees that the run and its record need."""
        return tuple(tree for tree in (self.tree, self.base) if tree)

    def to_json(self) -> dict[str, Any]:
        """The fields that are given; `from_json` reads them."""
        return {name: value for name, value in asdict(self).items() if value}


NO_TRAINER = TrainerSpec()  # of a built-in task
# Name among the settings in records of version 0.1.0 → field of TrainerSpec.
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
    """Separate settings from the facts of a user's trainer, as version 0.1.0 recorded them together.

    settings: of a run of this task, or some of them. Raises ValueError for facts of wrong types.
    """
    names = tuple(_FACTS) if task == "command" else _OF_FUNCTIONS if ":" in task else ()
    facts = {_FACTS[name]: settings[name] for name in names if name in settings}
    return {name: value for name, value in settings.items() if name not in names}, TrainerSpec.from_json(facts)


@dataclass(frozen=True)
class RunSpec:
    """One training with one seed, or one ensemble, which trains nothing."""

    run_id: str
    config: Mapping[str, Any]  # all settings, nested, with task and seed
    inputs: Mapping[str, str]  # digests of what training reads; the run_ids of its members or its parent run too
    named_by: Mapping[str, Any] | None = None  # the settings that name a run of a user's trainer (store/run_names.py)
    steps: int | None = None  # optimizer updates, from the beginning; None: no setting gives them, or an ensemble
    num_params: int | None = None  # None: known only after training; an ensemble has those of all members
    cost: float = 0.0  # predicted floating-point operations of training, of a branch's own steps; 0: unknown
    folder: str = ""  # the study's folder, where a user's own task is found; "" for a built-in study
    python: str = ""  # the interpreter of a user's function, as the study names it; "": this program's
    lineage: str = ""  # equal for runs that may continue each other (experiments/identity.py)
    trainer: TrainerSpec = NO_TRAINER  # of a user's trainer

    @property
    def task(self) -> str:
        """The name of the task that trains it."""
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
        """Return whether the run was trained elsewhere; nothing trains it here."""
        return imported_in(self.inputs)

    @property
    def parent_run(self) -> ParentRun | None:
        """The origin of a branch; None for a training from the start."""
        return parent_run_in(self.inputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """The run_ids that must be trained before: an ensemble's members, a branch's parent run."""
        return (*self.members, *([self.parent_run.run_id] if self.parent_run else []))

    @property
    def own_steps(self) -> int | None:
        """Steps that this run trains itself; None if unknown. 0 for an ensemble."""
        if self.members:
            return 0
        return self.steps if self.steps is None or self.parent_run is None else self.steps - self.parent_run.step

    @property
    def portable(self) -> Self:
        """This record without the study's folder, for files that move with a store."""
        return replace(self, folder="")

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)

    @staticmethod
    def from_json(values: object) -> "RunSpec":
        """Read a record of `to_json`. Raises ValueError for missing fields and for wrong types."""
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
    """Return the RunSpec of a record in a store or a queue, also of those that version 0.1.0 wrote.

    These have the fields beside their own ones. Raises ValueError for missing fields and for wrong types.
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
    """Return the record of a run with validated settings; `fields`: those that do not follow from the settings."""
    of_settings: dict[str, Any] = {
        "steps": None if members_in(inputs) else total_steps(config),
        "lineage": lineage(config, inputs, trainer.command),
        "trainer": trainer,
    }
    return RunSpec(run_id, config.model_dump(mode="json"), dict(inputs), **{**of_settings, **fields})
