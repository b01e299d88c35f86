"""A plan: the runs of a study's selected rows, with their identities, parameters, cost and state.

This module trains nothing and does not import torch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from typing import Any

from ablations.planning.derived_rows import steps_kept
from ablations.planning.match import matched
from ablations.planning.resolve import PlannedRow, published_names, resolve
from ablations.planning.row_notes import of_refused, of_seeds, of_settings
from ablations.study.selectors import Selection
from ablations.study.study import Study
from ablations.study.variation import Variation
from experiments.config.task_config import TaskConfig, total_steps
from experiments.dotted import flatten, nested
from experiments.errors import UserError
from experiments.identity import (
    ParentRun,
    digest,
    of_imported,
    with_code_change,
    with_members,
    with_parent_run,
)
from experiments.messages import show
from experiments.records import TRAINING
from experiments.run_spec import EvaluationSpec, RunSpec, TrainerSpec, run_spec
from experiments.run_state import RunState
from experiments.store.run_names import RunName, named_by_of, run_name
from experiments.tasks.base import Task, settings_read

AUTO = "auto"


StateOf = Callable[[str, list[str], TrainerSpec], RunState]  # (run_id, eval_ids, trainer) → state of the run
# (settings, inputs, trainer) → name of the run (store/run_names.py)
Find = Callable[[TaskConfig, Mapping[str, str], TrainerSpec], RunName]


@dataclass(frozen=True)
class PlannedRun:
    """One training of one row with one seed, and its evaluations. An ensemble is also a run, which trains nothing."""

    spec: RunSpec
    planned_row: PlannedRow  # `planned_row.config` has the run's settings, apart from the seed
    store_state: RunState
    evaluations: tuple[EvaluationSpec, ...]
    read_by: tuple[EvaluationSpec, ...] = ()  # evaluations of ensembles that read this run's checkpoints
    kept_at: tuple[int, ...] = ()  # steps whose checkpoints the run keeps, because rows of the study branch from them
    read_at: tuple[int, ...] = ()  # the steps in `kept_at` from which planned, unfinished branches start
    added: Mapping[str, Any] = field(default_factory=dict)  # settings added to the user's task after this training

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
        """Number of steps to train; None if unknown.

        The number is 0 if the run is trained, and only its evaluations are missing, stale or to be read again.
        Otherwise it is the number of all steps of the run except those of its parent run. Checkpoints are not
        considered.
        """
        found = self.store_state
        trained = found.to_make or found.to_read or (found.stale and TRAINING not in found.stale)
        return 0 if trained else self.spec.own_steps

    @property
    def state_in_words(self) -> str:
        """The state for the user: missing, "trained, not decoded", …"""
        if self.store_state.to_make and self.state == "missing":
            return f"trained, not {self.store_state.to_make}d"
        again = self.store_state.to_read and self.state in ("finished", "stale")
        return f"{self.state}, metrics not read" if again else self.state

    @property
    def eval_ids(self) -> list[str]:
        """The eval_ids of the run's evaluations, in order."""
        return [evaluation.eval_id for evaluation in self.evaluations]


@dataclass(frozen=True)
class Plan:
    """All rows and runs of a study under one profile and selection."""

    study: Study
    profile: str
    rows: tuple[PlannedRow, ...]
    runs: tuple[PlannedRun, ...]  # sorted by row (in the order of the study), then by seed
    notes: tuple[str, ...]  # notes for the reader of the table: replaced values, the profile's notes, …
    paper_keys: tuple[str, ...]  # names of the published numbers that the task's columns can print
    members: tuple[PlannedRun, ...] = ()  # the trainings that ensembles and branches in `runs` read, each once

    def without_stale_marks(self) -> "Plan":
        """Return the plan with all stale results counted as finished."""

        def unmarked(run: PlannedRun) -> PlannedRun:
            state = "finished" if run.state == "stale" else run.state
            return replace(run, store_state=run.store_state._replace(state=state, stale=(), changed=()))

        return replace(self, runs=tuple(map(unmarked, self.runs)), members=tuple(map(unmarked, self.members)))

    def changes_code(self, row: PlannedRow) -> bool:
        """Return whether the code of a row differs from base's code."""
        return row.trainer.tree != self.study.code_tree

    def members_of(self, run: PlannedRun) -> list[PlannedRun]:
        """Return the members of an ensemble, in the order of their seeds; [] for a training."""
        return [member for member in self.members if member.run_id in run.spec.members]

    def parent_run_of(self, run: PlannedRun) -> PlannedRun | None:
        """Return the run that a branch continues; None for a training from the start."""
        start = run.spec.parent_run
        return next((m for m in self.members if start and m.run_id == start.run_id), None)

    @property
    def trainings(self) -> list[PlannedRun]:
        """All runs, and the members that are not in `runs`."""
        known = {run.run_id for run in self.runs}
        return [*self.runs, *(member for member in self.members if member.run_id not in known)]


def plan_as_json(plan: Plan) -> list[dict[str, Any]]:
    """Return the plan as JSON: one object for each run and each member. Missing published numbers are null."""
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


def plan_study(
    study: Study, selection: Selection, task: Task, store: Path, state_of: StateOf, find: Find = run_name
) -> Plan:
    """Plan the runs of a study.

    store: the store's folder. state_of: a function that returns a run's state. find: a function that returns the name
    of the run with given settings. Raises UserError for mistakes in the study or the selection (see `resolve`), and
    for a corpus that cannot be read.
    """
    study, of_match = matched(study, selection, task)
    rows, of_settled = settled(resolve(study, selection, task), study, selection, task)
    inputs = Inputs(task, store, find)
    name, profile = study.profile_named(selection.profile)
    kept_at = steps_kept(study, name, profile)
    runs: list[PlannedRun] = []
    members: dict[str, PlannedRun] = {}
    for row in rows:
        if row.variation.imported:
            runs += imported_runs(study, row, task, store, state_of, find)
            continue
        if row.parent_run is not None:
            parent_runs = runs_of(row.parent_run, inputs, task, store, state_of)
            branches = runs_of(row, inputs, task, store, state_of, [run.run_id for run in parent_runs])
            runs += branches
            for parent_run, branch in zip(parent_runs, branches, strict=True):
                before = members.get(parent_run.run_id, replace(parent_run, evaluations=()))
                read_at = {*before.read_at, *([row.shared_steps] if branch.state != "finished" else [])}
                members[parent_run.run_id] = replace(
                    before,
                    kept_at=kept_at[row.parent_run.variation.key],
                    read_at=tuple(sorted(read_at)),
                    store_state=state_of(parent_run.run_id, [], parent_run.spec.trainer),
                )
            continue
        if row.variation.ensemble is None:
            of_row = kept_at.get(row.variation.key, ())
            runs += [replace(run, kept_at=of_row) for run in runs_of(row, inputs, task, store, state_of)]
            continue
        single = members_of(study, row)
        trained = runs_of(single, inputs, task, store, state_of)
        runs.append(ensemble_of(row, trained, state_of))
        for member in trained:
            before = members.get(member.run_id, member)
            read_by = (*before.read_by, *member.evaluations)
            overrides = {name: value for name, value in row.overrides.items() if not name.startswith("evaluation.")}
            members[member.run_id] = replace(
                member,
                evaluations=(),
                read_by=read_by,
                planned_row=replace(single, overrides=overrides),
                kept_at=kept_at.get(single.variation.key, ()),
                read_at=before.read_at,
                store_state=state_of(member.run_id, [], member.spec.trainer),
            )
    _refuse_same_runs(runs, study)
    # A profile's notes describe results with the profile's settings. They do not hold with --corpus or --set.
    of_profile = () if selection.forced else profile.notes
    notes = (
        *filter(None, [study.code_note, study.trees_note]),
        *of_match,
        *of_settled,
        *of_refused(rows),
        *of_settings(rows),
        *of_added(runs),
        *of_seeds(study, rows),
        *of_profile,
    )
    paper_keys = tuple(published_names(study, task))

    def of_study(run: PlannedRun) -> PlannedRun:
        return replace(run, spec=replace(run.spec, folder=str(study.folder or ""), python=study.python))

    of_plan, read = tuple(map(of_study, runs)), tuple(map(of_study, members.values()))
    return Plan(study, name, tuple(rows), of_plan, notes, paper_keys, read)


def settled(
    rows: list[PlannedRow], study: Study, selection: Selection, task: Task
) -> tuple[list[PlannedRow], list[str]]:
    """Replace "auto" in settings that depend on the whole table. Return the rows, and one note for each such setting.

    The values do not depend on which rows are selected.
    """
    notes = []
    for name in task.settled_for_table:
        asks = attrgetter(name)
        if not any(asks(row.config) == AUTO for row in rows):
            continue
        every = resolve(study, replace(selection, rows=()), task) if selection.rows else rows
        configs = {row.variation.key: row.config for row in every if asks(row.config) == AUTO}
        value, note = task.for_table(name, configs)
        notes.append(note)
        rows = [_with(row, name, value) for row in rows]
    return rows, notes


def _with(row: PlannedRow, name: str, value: object) -> PlannedRow:
    """Return the row with a value in place of "auto". The parent row of a branch gets the value too."""
    settings = dict(flatten(row.config))
    parent_run = row.parent_run and _with(row.parent_run, name, value)
    if settings[name] != AUTO:
        return replace(row, parent_run=parent_run)
    config = type(row.config).from_mapping(nested({**settings, name: value}))
    return replace(row, config=config, parent_run=parent_run)


def _refuse_same_runs(runs: list[PlannedRun], study: Study) -> None:
    """Raise UserError if runs of two rows have the same run_id and eval_ids, because their results would be equal."""
    seen: dict[tuple[str, ...], PlannedRun] = {}
    for run in runs:
        other = seen.setdefault((run.run_id, *run.eval_ids), run)
        if other.row != run.row:
            names = ", ".join(dict.fromkeys([*other.planned_row.overrides, *run.planned_row.overrides]))
            raise UserError(
                f'{study.origin}: the rows "{other.row}" and "{run.row}" are the same run (seed {run.seed}): '
                f"their changes ({names}) affect neither training nor scores. Leave out one of them."
            )


def of_added(runs: Sequence[PlannedRun]) -> list[str]:
    """Return notes on settings that were added to a trainer after some runs were trained.

    A note names the rows of these runs, and the value of the setting that the runs are assumed to have.
    """
    concerned: dict[tuple[str, str], dict[str, None]] = {}
    for run in runs:
        if run.added and run.state in ("finished", "stale"):
            values = ", ".join(f"{name} = {show(value)}" for name, value in run.added.items())
            concerned.setdefault((", ".join(run.added), values), {})[run.row] = None
    return [
        f"{', '.join(rows)}: trained before {names} existed; counted as {values}."
        for (names, values), rows in concerned.items()
    ]


class Inputs:
    """Digests of the task's training inputs, computed once per corpus, because hashing takes time."""

    def __init__(self, task: Task, store: Path, find: Find) -> None:
        self._task, self._store, self.find = task, store, find
        self._known: dict[str, dict[str, str]] = {}

    def of(self, config: TaskConfig) -> dict[str, str]:
        key = digest(settings_read(config, self._task.inputs_read))
        if key not in self._known:
            self._known[key] = self._task.inputs(config, self._store)
        return self._known[key]


def runs_of(
    row: PlannedRow, inputs: Inputs, task: Task, store: Path, state_of: StateOf, parent_runs: Sequence[str] = ()
) -> list[PlannedRun]:
    """Return one run per seed. Parameters, cost and evaluations are the same for all seeds of a row.

    parent_runs: for a branch, the run_ids of the runs that it continues, in the order of the seeds.
    """
    data = inputs.of(row.config)
    specs = task.evaluations(row.config, store)
    num_params, cost = task.num_params(row.config), task.cost(row.config)
    if row.parent_run is not None:
        steps = total_steps(row.config) or row.shared_steps
        cost *= (steps - row.shared_steps) / steps
    runs = []
    for place, seed in enumerate(row.seeds):
        config = row.config_of(seed)
        digests: Mapping[str, str] = data
        if parent_runs:
            digests = with_parent_run(data, ParentRun(parent_runs[place], row.shared_steps))
        digests, name = _named(row, config, digests, inputs, state_of)
        facts = {"num_params": num_params, "cost": cost}
        runs.append(_planned(row, config, name, digests, specs, state_of, **facts))
    return runs


def _named(
    row: PlannedRow, config: TaskConfig, data: Mapping[str, str], inputs: Inputs, state_of: StateOf
) -> tuple[dict[str, str], RunName]:
    """Return the inputs of a run, with the digest of its row's code change, and the name of the run.

    If the program cannot create the row's code now (for example because a patch does not apply), it knows only earlier
    digests of the change, possibly several. The function then chooses a digest with which the store has a run. If the
    store has no such run, the function chooses the first digest.
    """
    variation = row.variation
    changes = (variation.code_change, *variation.other_changes) if variation.change else ("",)
    digests = [with_code_change(data, one) for one in changes]
    found = [(changed, inputs.find(config, changed, row.trainer)) for changed in digests]
    if len(found) > 1:
        for changed, name in found:
            if state_of(name.run_id, [], row.trainer).state != "missing":
                return changed, name
    return found[0]


def imported_runs(
    study: Study, row: PlannedRow, task: Task, store: Path, state_of: StateOf, find: Find
) -> list[PlannedRun]:
    """Return one run per seed. The run_id depends on the names of study and row, because the inputs are unknown.

    The settings with which the test sets were decoded are unknown too.
    """
    inputs = of_imported(study.name, row.variation.key)
    specs = [EvaluationSpec(spec.set, {"imported": spec.set}, {}) for spec in task.evaluations(row.config, store)]
    runs = []
    for seed in row.seeds:
        config = row.config_of(seed)
        runs.append(_planned(row, config, find(config, inputs, row.trainer), inputs, specs, state_of))
    return runs


def members_of(study: Study, ensemble: PlannedRow) -> PlannedRow:
    """Return the members of an ensemble as a planned row, with the decoding settings of the ensemble."""
    about = ensemble.variation.ensemble
    assert about is not None
    of = next(row for row in study.variations if row.key == about.of)
    return replace(ensemble, variation=of, seeds=about.seeds)


def ensemble_of(row: PlannedRow, members: Sequence[PlannedRun], state_of: StateOf) -> PlannedRun:
    """Return the one run of an ensemble row. Its run_id and eval_ids depend on the run_ids of the members."""
    inputs = with_members(members[0].spec.inputs, [member.run_id for member in members])
    of_one = members[0].spec.num_params
    num_params = None if of_one is None else of_one * len(members)
    name = run_name(row.config, inputs, row.trainer)
    return _planned(row, row.config, name, inputs, members[0].evaluations, state_of, num_params=num_params)


def _planned(
    row: PlannedRow,
    config: TaskConfig,
    name: RunName,
    inputs: Mapping[str, str],
    specs: Iterable[EvaluationSpec],
    state_of: StateOf,
    **facts: Any,
) -> PlannedRun:
    """Return a run of the row with its evaluations and its state. facts: the fields num_params and cost of its spec."""
    spec = run_spec(config, name.run_id, inputs, row.trainer, named_by=named_by_of(name), **facts)
    evaluations = tuple(evaluation.named(spec.run_id) for evaluation in specs)
    state = state_of(spec.run_id, [evaluation.eval_id for evaluation in evaluations], row.trainer)
    return PlannedRun(spec, row, state, evaluations, added=name.added)
