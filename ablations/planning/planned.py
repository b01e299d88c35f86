"""What a plan is: rows with their runs, and the runs' identities, parameters, cost and state.

Trains nothing, imports no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ablations.study.study import Study
from ablations.study.variation import Variation
from experiments.config.task_config import TaskConfig
from experiments.records import TRAINING
from experiments.run_spec import NO_TRAINER, EvaluationSpec, RunSpec, TrainerSpec
from experiments.run_state import RunState
from experiments.store.run_names import RunName

# --- A row of a study as it will run


@dataclass(frozen=True)
class Replaced:
    """A value declared by a row and replaced by the profile or the command line."""

    name: str
    declared: Any
    value: Any
    by: str


@dataclass(frozen=True)
class PlannedRow:
    """A row as it will run. `config` has the first seed; the row's other runs differ only in the seed."""

    variation: Variation
    config: TaskConfig
    seeds: tuple[int, ...]
    overrides: Mapping[str, Any]  # changes from base, after scaling, by dotted name
    replaced: tuple[Replaced, ...]
    trainer: TrainerSpec = NO_TRAINER  # of a user's trainer, with the row's code if that is changed
    repeated_by: tuple[str, ...] = ()  # rows of designs that equal this one and are left out
    parent_run: "PlannedRow | None" = None  # of a branch: the row that it begins with, with its own seeds
    shared_steps: int = 0  # of a branch: the steps that its parent run trains

    def config_of(self, seed: int) -> TaskConfig:
        """The configuration with another seed."""
        return self.config.model_copy(update={"seed": seed})


# --- Runs, evaluations and the plan of all rows


StateOf = Callable[[str, list[str], TrainerSpec], RunState]  # run_id, eval_ids, trainer
# settings, inputs, trainer → the name of the run (store/run_names.py)
Find = Callable[[TaskConfig, Mapping[str, str], TrainerSpec], RunName]


@dataclass(frozen=True)
class PlannedRun:
    """One training of one row with one seed, and its evaluations; or one ensemble, which trains nothing."""

    spec: RunSpec
    planned_row: PlannedRow  # its `config` has the run's settings, apart from the seed
    store_state: RunState
    evaluations: tuple[EvaluationSpec, ...]
    read_by: tuple[EvaluationSpec, ...] = ()  # evaluations of ensembles, which read its checkpoints
    kept_at: tuple[int, ...] = ()  # steps after which rows of the study branch from it: it keeps these checkpoints
    read_at: tuple[int, ...] = ()  # those of them with which planned branches that are not finished begin
    added: Mapping[str, Any] = field(default_factory=dict)  # settings of an own task that the run was trained without

    @property
    def run_id(self) -> str:
        """The run's identity."""
        return self.spec.run_id

    @property
    def seed(self) -> int:
        """The run's seed; NO_SEED for an ensemble."""
        return self.spec.seed

    @property
    def row(self) -> str:
        """The key of the run's row."""
        return self.variation.key

    @property
    def variation(self) -> Variation:
        """The run's row as the study declares it."""
        return self.planned_row.variation

    @property
    def state(self) -> str:
        """The run's state in the store: missing, finished, …"""
        return self.store_state.state

    @cached_property
    def config(self) -> TaskConfig:
        """The validated settings."""
        return self.planned_row.config_of(self.spec.config["seed"])

    @property
    def name(self) -> str:
        """The row and the seed, for messages: "base (seed 1)"; the row alone for an ensemble."""
        return self.row if self.spec.members else f"{self.row} (seed {self.seed})"

    @property
    def steps_left(self) -> int | None:
        """Steps that are still to be trained; None if unknown. 0 for a run that is trained or stale only in scores."""
        found = self.store_state
        trained = found.to_make or found.to_read or (found.stale and TRAINING not in found.stale)
        return 0 if trained else self.spec.own_steps

    @property
    def state_in_words(self) -> str:
        """The state for the user: missing, "trained, to decode", …"""
        if self.store_state.to_make and self.state == "missing":
            return f"trained, to {self.store_state.to_make}"
        again = self.store_state.to_read and self.state in ("finished", "stale")
        return f"{self.state}, to read again" if again else self.state

    @property
    def eval_ids(self) -> list[str]:
        """Identities of the run's evaluations, in order."""
        return [evaluation.eval_id for evaluation in self.evaluations]


@dataclass(frozen=True)
class Plan:
    """All rows and runs of a study under one profile and selection."""

    study: Study
    profile: str
    rows: tuple[PlannedRow, ...]
    runs: tuple[PlannedRun, ...]  # by row in the study's order, then by seed
    notes: tuple[str, ...]  # for the reader of the table: declared values that were replaced, the profile's notes
    paper_keys: tuple[str, ...]  # names of the published numbers that the task's columns can print
    members: tuple[PlannedRun, ...] = ()  # trainings that ensembles and branches among `runs` read, each once

    def without_stale_marks(self) -> "Plan":
        """The plan as it was before any code changed: no result of it is stale."""

        def unmarked(run: PlannedRun) -> PlannedRun:
            state = "finished" if run.state == "stale" else run.state
            return replace(run, store_state=run.store_state._replace(state=state, stale=(), changed=()))

        return replace(self, runs=tuple(map(unmarked, self.runs)), members=tuple(map(unmarked, self.members)))

    def changes_code(self, row: PlannedRow) -> bool:
        """Whether a row has other code than base."""
        return row.trainer.tree != self.study.code_tree

    def members_of(self, run: PlannedRun) -> list[PlannedRun]:
        """The members of an ensemble, by seed; [] for a training."""
        return [member for member in self.members if member.run_id in run.spec.members]

    def parent_run_of(self, run: PlannedRun) -> PlannedRun | None:
        """The run with which a branch begins; None for a training from the start."""
        start = run.spec.parent_run
        return next((m for m in self.members if start and m.run_id == start.run_id), None)

    @property
    def trainings(self) -> list[PlannedRun]:
        """All runs, and the members that are not among them."""
        known = {run.run_id for run in self.runs}
        return [*self.runs, *(member for member in self.members if member.run_id not in known)]


def plan_as_json(plan: Plan) -> list[dict[str, Any]]:
    """The plan for other programs: one object per run, members of ensembles too. Missing published numbers are null."""
    return [
        {
            "row": run.row,
            "members": list(run.spec.members),
            **({"parent_run": run.spec.parent_run._asdict()} if run.spec.parent_run else {}),
            "group": run.variation.group,
            "label": run.variation.label,
            "seed": run.seed,
            "run_id": run.run_id,
            "eval_ids": run.eval_ids,
            "num_params": run.spec.num_params,
            "cost": run.spec.cost,
            "overrides": dict(run.planned_row.overrides),
            **({"code_tree": run.spec.trainer.tree} if run.spec.trainer.tree else {}),
            "described": run.config.described(),
            "paper": {key: run.variation.paper.get(key) for key in plan.paper_keys},
            "state": run.state,
            "stale": list(run.store_state.stale),
            "to_make": run.store_state.to_make or None,
            "to_read": list(run.store_state.to_read),
        }
        for run in plan.trainings
    ]
