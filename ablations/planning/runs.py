"""The runs of one row: one training per seed, branches of other rows' runs, runs from elsewhere, or an ensemble."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ablations.planning.planned import Find, PlannedRow, PlannedRun, StateOf
from ablations.study.study import Study
from ablations.study.variation import Profile, Variation, scaled_step
from experiments.config.task_config import TaskConfig, total_steps
from experiments.dotted import Overrides
from experiments.errors import UserError
from experiments.identity import (
    ParentRun,
    digest,
    of_imported,
    with_code_change,
    with_members,
    with_parent_run,
)
from experiments.run_spec import EvaluationSpec, run_spec
from experiments.store.run_names import RunName, named_by_of, plain_name
from experiments.tasks.base import Task, settings_read


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
    """One run per seed. Parameters, cost and evaluations are the same for all seeds of a row.

    parent runs: of a branch, the runs with which its own begin, by seed.
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
    """The inputs of a run with its row's change of code, and its name.

    Of a row whose code cannot be made now, the change may have several digests: that of a run in the store is taken.
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
    """One run per seed, named by study and row. How its sets were decoded elsewhere is not known here."""
    inputs = of_imported(study.name, row.variation.key)
    specs = [EvaluationSpec(spec.set, {"imported": spec.set}, {}) for spec in task.evaluations(row.config, store)]
    runs = []
    for seed in row.seeds:
        config = row.config_of(seed)
        runs.append(_planned(row, config, find(config, inputs, row.trainer), inputs, specs, state_of))
    return runs


def members_of(study: Study, ensemble: PlannedRow) -> PlannedRow:
    """The members of an ensemble as a row of the row that it names: the settings are the same but for decoding."""
    about = ensemble.variation.ensemble
    assert about is not None
    of = next(row for row in study.variations if row.key == about.of)
    return replace(ensemble, variation=of, seeds=about.seeds)


def ensemble_of(row: PlannedRow, members: Sequence[PlannedRun], state_of: StateOf) -> PlannedRun:
    """The row's one entry. It and its evaluations are named by the members."""
    inputs = with_members(members[0].spec.inputs, [member.run_id for member in members])
    of_one = members[0].spec.num_params
    num_params = None if of_one is None else of_one * len(members)
    name = plain_name(row.config, inputs, row.trainer)
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
    """A run of the row with its evaluations and its state. facts: its number of parameters and its cost."""
    spec = run_spec(config, name.run_id, inputs, row.trainer, named_by=named_by_of(name), **facts)
    evaluations = tuple(evaluation.named(spec.run_id) for evaluation in specs)
    state = state_of(spec.run_id, [evaluation.eval_id for evaluation in evaluations], row.trainer)
    return PlannedRun(spec, row, state, evaluations, added=name.added)


# --- Rows that branch from another: where they begin under a profile, and what forbids it


def first_step(row: Variation, profile: str, of: Profile, where: str) -> int:
    """The last step that a branch shares with its parent run, under a profile. Raises UserError (see `scaled_step`)."""
    assert row.branch is not None
    given = row.branch.by_profile.get(profile)
    return scaled_step(row.branch.step, of, profile, where) if given is None else given


def steps_kept(study: Study, profile: str, of: Profile) -> dict[str, tuple[int, ...]]:
    """Parent run → the steps after which rows of the study branch from it, selected or not: their checkpoints are kept.

    Mistakes in a row are reported where it is planned.
    """
    found: dict[str, set[int]] = {}
    for row in study.variations:
        if row.branch is not None:
            with contextlib.suppress(UserError):
                found.setdefault(row.branch.row, set()).add(first_step(row, profile, of, ""))
    return {parent_run: tuple(sorted(steps)) for parent_run, steps in found.items()}


def check_branch(row: Variation, parent_run: TaskConfig, config: TaskConfig, step: int, task: Task, where: str) -> None:
    """Raises UserError where a branch is not possible: a step that is not reached, a difference that acts before it."""
    assert row.branch is not None
    for steps, whose in (
        (total_steps(parent_run), f'its parent run "{row.branch.row}" has'),
        (total_steps(config), "it has"),
    ):
        last = "or less" if whose.startswith("its") else "less"
        if steps is not None and (step > steps or (step == steps and last == "less")):
            raise UserError(
                f"{where}: it branches from step {step:,}, and {whose} {steps:,} steps (training.train_steps). Give "
                f"from.step{f' = {steps:,} or less' if last == 'or less' else f' below {steps:,}'}, or train longer."
            )
    if why := task.not_a_branch(parent_run, config, step):
        raise UserError(f"{where}: {why}. Train this row from the start (leave out `from`), or undo that difference.")


# --- Rows that are made of another row: ensembles of its trainings, and branches


def as_run(study: Study, row: Variation) -> Variation:
    """The row with all settings that its runs have: those of the row that it names, and its own.

    What an ensemble sets itself (how it is decoded) or a branch (how it goes on) replaces what that row sets. A branch
    has the seeds of its parent run, unless it says how many.
    """
    named = row.ensemble.of if row.ensemble else row.branch.row if row.branch else None
    if named is None:
        return row
    of = next(other for other in study.variations if other.key == named)

    def joined(theirs: Overrides, own: Overrides) -> Overrides:
        return {**{name: value for name, value in theirs.items() if name not in row.declared}, **own}

    parts = {name: joined(getattr(of, name), getattr(row, name)) for name in ("set", "fixed", "tuned")}
    profiles = dict.fromkeys([*of.by_profile, *row.by_profile])
    by_profile = {name: joined(of.by_profile.get(name, {}), row.by_profile.get(name, {})) for name in profiles}
    seeds = {"seeds": row.seeds or of.seeds, "seed_offset": of.seed_offset} if row.branch else {}
    return row.model_copy(update={**parts, **seeds, "by_profile": by_profile})
