"""Rows that are made of another row: ensembles of its trainings, and branches, which begin with them."""

import contextlib

from ablations.study.study import Study
from ablations.study.variation import Profile, Variation, scaled_step
from experiments.config.task_config import TaskConfig, total_steps
from experiments.dotted import Overrides
from experiments.errors import UserError
from experiments.tasks.base import Task


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
