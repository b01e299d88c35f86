"""Rows that branch from another: where they begin under a profile, and what forbids it."""

import contextlib

from ablations.study.scale import scaled_step
from ablations.study.study import Study
from ablations.study.variation import Profile, Variation
from experiments.config import TaskConfig, total_steps
from experiments.errors import UserError
from experiments.tasks.base import Task


def first_step(row: Variation, profile: str, of: Profile, where: str) -> int:
    """The last step that a branch shares with its trunk, under a profile. Raises UserError (see `scaled_step`)."""
    assert row.branch is not None
    given = row.branch.by_profile.get(profile)
    return scaled_step(row.branch.step, of, profile, where) if given is None else given


def steps_kept(study: Study, profile: str, of: Profile) -> dict[str, tuple[int, ...]]:
    """Trunk → the steps after which rows of the study branch from it, selected or not: their checkpoints are kept.

    Mistakes in a row are reported where it is planned.
    """
    found: dict[str, set[int]] = {}
    for row in study.variations:
        if row.branch is not None:
            with contextlib.suppress(UserError):
                found.setdefault(row.branch.row, set()).add(first_step(row, profile, of, ""))
    return {trunk: tuple(sorted(steps)) for trunk, steps in found.items()}


def check_branch(row: Variation, trunk: TaskConfig, config: TaskConfig, step: int, task: Task, where: str) -> None:
    """Raises UserError where a branch is not possible: a step that is not reached, a difference that acts before it."""
    assert row.branch is not None
    for steps, whose in ((total_steps(trunk), f'its trunk "{row.branch.row}" has'), (total_steps(config), "it has")):
        last = "or less" if whose.startswith("its") else "less"
        if steps is not None and (step > steps or (step == steps and last == "less")):
            raise UserError(
                f"{where}: it branches from step {step:,}, and {whose} {steps:,} steps (training.train_steps). Give "
                f"from.step{f' = {steps:,} or less' if last == 'or less' else f' below {steps:,}'}, or train longer."
            )
    if why := task.not_a_branch(trunk, config, step):
        raise UserError(f"{where}: {why}. Train this row from the start (leave out `from`), or undo that difference.")
