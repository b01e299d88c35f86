"""What a plan is: rows with their runs, and the runs' identities, parameters, cost and state.

Trains nothing, imports no torch.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from ablations.study.study import Study
from ablations.study.variation import Variation
from experiments.config.task_config import TaskConfig, total_steps
from experiments.identity import ParentRun, imported_in, members_in, parent_run_in
from experiments.records import TRAINING
from experiments.store.run_names import RunName
from experiments.tasks.base import EvaluationSpec

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
    repeated_by: tuple[str, ...] = ()  # rows of designs that equal this one and are left out
    parent_run: "PlannedRow | None" = None  # of a branch: the row that it begins with, with its own seeds
    shared_steps: int = 0  # of a branch: the steps that its parent run trains

    def config_of(self, seed: int) -> TaskConfig:
        """The configuration with another seed."""
        return self.config.model_copy(update={"seed": seed})


# --- Runs, evaluations and the plan of all rows


class RunState(NamedTuple):
    """How far a run and its requested evaluations are.

    `word`: missing, waiting, running, finished, failed, stale or damaged. `stale`: what other code has made of a
    trained run: TRAINING, and parts of evaluations ("decode", "score"). `to_make`: of a trained run what its missing
    evaluations begin with, "decode" or "score". `made`: the eval_ids that it has. `to_read`: those of them that are
    made again from what the run kept, without training, because the study reads other numbers now (Task.outdated).
    `changed`: what of the training code is another one now, such as names of files (Task.changed_code).
    """

    word: str
    stale: tuple[str, ...] = ()
    to_make: str = ""
    made: tuple[str, ...] = ()
    to_read: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


StateOf = Callable[[str, list[str], TaskConfig], RunState]  # run_id, eval_ids, settings
# settings, inputs → the name of the run (store/run_names.py)
Find = Callable[[TaskConfig, Mapping[str, str]], RunName]


@dataclass(frozen=True)
class PlannedEvaluation:
    """One decoding and scoring of a run's weights, with its identity."""

    spec: EvaluationSpec
    eval_id: str


@dataclass(frozen=True)
class PlannedRun:
    """One training of one row with one seed, and its evaluations; or one ensemble, which trains nothing."""

    row: str
    group: str
    label: str
    seed: int  # NO_SEED: an ensemble
    config: TaskConfig
    run_id: str
    inputs: Mapping[str, str]  # digests of what training reads; its members' or its parent run's run_ids too
    evaluations: tuple[PlannedEvaluation, ...]
    num_params: int | None  # None: known only after training; an ensemble has those of all members
    cost: float  # predicted floating-point operations of training, of a branch's own steps; 0: unknown, or an ensemble
    overrides: Mapping[str, Any]  # changes from base, after scaling, by dotted name
    paper: Mapping[str, float]
    state: str  # RunState.word
    stale: tuple[str, ...] = ()  # RunState.stale
    to_make: str = ""  # RunState.to_make
    made: tuple[str, ...] = ()  # RunState.made
    to_read: tuple[str, ...] = ()  # RunState.to_read
    changed: tuple[str, ...] = ()  # RunState.changed
    read_by: tuple[EvaluationSpec, ...] = ()  # evaluations of ensembles, which read its checkpoints
    kept_at: tuple[int, ...] = ()  # steps after which rows of the study branch from it: it keeps these checkpoints
    read_at: tuple[int, ...] = ()  # those of them with which planned branches that are not finished begin
    named_by: Mapping[str, Any] | None = None  # the settings that name a run of a user's trainer (store/run_names.py)
    added: Mapping[str, Any] = field(default_factory=dict)  # settings of an own task that the run was trained without
    refused: str = ""  # why its row's code cannot be made now, so that it cannot be trained

    @property
    def members(self) -> tuple[str, ...]:
        """The run_ids of an ensemble's members; () for a training."""
        return members_in(self.inputs)

    @property
    def imported(self) -> bool:
        """Whether it was trained elsewhere; nothing trains it here."""
        return imported_in(self.inputs)

    @property
    def parent_run(self) -> ParentRun | None:
        """Where a branch begins; None for a training from the start."""
        return parent_run_in(self.inputs)

    @property
    def reads(self) -> tuple[str, ...]:
        """The run_ids that must be trained before: an ensemble's members, a branch's parent run."""
        return (*self.members, *([self.parent_run.run_id] if self.parent_run else []))

    @property
    def own_steps(self) -> int | None:
        """Steps that this run trains itself; None if unknown. Of an ensemble 0."""
        if self.members:
            return 0
        steps = total_steps(self.config)
        return steps if steps is None or self.parent_run is None else steps - self.parent_run.step

    @property
    def name(self) -> str:
        """The row and the seed, for messages: "base (seed 1)"; of an ensemble the row alone."""
        return self.row if self.members else f"{self.row} (seed {self.seed})"

    @property
    def steps_left(self) -> int | None:
        """Steps that are still to be trained; None if unknown. A run that is trained or stale only in its scores: 0."""
        trained = self.to_make or self.to_read or (self.stale and TRAINING not in self.stale)
        return 0 if trained else self.own_steps

    @property
    def state_in_words(self) -> str:
        """The state for the user: missing, "trained, to decode", …"""
        if self.to_make and self.state == "missing":
            return f"trained, to {self.to_make}"
        return f"{self.state}, to read again" if self.to_read and self.state in ("finished", "stale") else self.state

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
            return replace(run, state=state, stale=(), changed=())

        return replace(self, runs=tuple(map(unmarked, self.runs)), members=tuple(map(unmarked, self.members)))

    def members_of(self, run: PlannedRun) -> list[PlannedRun]:
        """The members of an ensemble, by seed; [] for a training."""
        return [member for member in self.members if member.run_id in run.members]

    def parent_run_of(self, run: PlannedRun) -> PlannedRun | None:
        """The run with which a branch begins; None for a training from the start."""
        return next((m for m in self.members if run.parent_run and m.run_id == run.parent_run.run_id), None)

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
            "members": list(run.members),
            **({"parent_run": run.parent_run._asdict()} if run.parent_run else {}),
            "group": run.group,
            "label": run.label,
            "seed": run.seed,
            "run_id": run.run_id,
            "eval_ids": run.eval_ids,
            "num_params": run.num_params,
            "cost": run.cost,
            "overrides": dict(run.overrides),
            "described": run.config.described(),
            "paper": {key: run.paper.get(key) for key in plan.paper_keys},
            "state": run.state,
            "stale": list(run.stale),
            "to_make": run.to_make or None,
            "to_read": list(run.to_read),
        }
        for run in plan.trainings
    ]
