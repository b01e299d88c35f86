"""Rows that use the trainings of another row. An ensemble combines these trainings, and a branch continues them."""

import contextlib

from ablations.study.study import Study
from ablations.study.variation import Profile, Variation, scaled_step
from experiments.config.task_config import TaskConfig, total_steps
from experiments.dotted import Overrides
from experiments.errors import UserError
from experiments.tasks.base import Task


def as_run(study: Study, row: Variation) -> Variation:
    """Return the row with the settings that it inherits.

    An ensemble inherits the settings of the row that it averages. A branch inherits the settings of its parent row. A
    setting of the ensemble (about decoding) or of the branch (about the continued training) replaces the inherited
    setting. A branch also inherits the seeds, unless it sets `seeds`. Other rows inherit nothing.
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
    """Return the step from which a branch starts, which is the last step that it shares with its parent run.

    The profile scales the step, unless the branch sets a step for this profile (`by_profile`).

    Raises UserError if the profile gives no valid step (see `scaled_step`).
    """
    assert row.branch is not None
    given = row.branch.by_profile.get(profile)
    return scaled_step(row.branch.step, of, profile, where) if given is None else given


def steps_kept(study: Study, profile: str, of: Profile) -> dict[str, tuple[int, ...]]:
    """Map the key of each parent row to the steps from which rows branch. Checkpoints of these steps are kept.

    Branches that are not selected count too. A branch with a mistake is skipped here, because planning that branch
    reports the mistake.
    """
    found: dict[str, set[int]] = {}
    for row in study.variations:
        if row.branch is not None:
            with contextlib.suppress(UserError):
                found.setdefault(row.branch.row, set()).add(first_step(row, profile, of, ""))
    return {parent_run: tuple(sorted(steps)) for parent_run, steps in found.items()}


def check_branch(row: Variation, parent_run: TaskConfig, config: TaskConfig, step: int, task: Task, where: str) -> None:
    """Raise UserError if the branch is not possible.

    A branch is not possible in three cases: the parent run ends before the step, the branch does not train beyond the
    step, or a setting that differs between branch and parent run has an effect before the step.
    """
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
