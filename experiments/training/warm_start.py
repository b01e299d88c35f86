"""Find the checkpoint from which a branch begins, and check whether a run can be a branch of another run.

A branch begins with the checkpoint of another run, its parent run, after a given step. Imports no torch.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from experiments.config.run_config import RunConfig
from experiments.dotted import flatten
from experiments.errors import UserError
from experiments.identity import ParentRun, digest
from experiments.store.layout import Store
from experiments.store.results import TrainingResult
from experiments.store.retention import spaced_steps
from experiments.training.kept_checkpoints import meta_of
from experiments.training.schedules import make_schedule

_WEIGHTS = "model.safetensors"


def checkpoint_of(store: Store, parent_run: ParentRun, code: str) -> Path | None:
    """Return the checkpoint from which a branch begins, or None if `code` has trained no such checkpoint.

    If several attempts have the checkpoint, return that of the newest attempt. The sizes and hashes of its files are
    not checked.

    code: the digest of the training code. Like a resumed run, a branch never mixes old and new code.
    """
    return next((path for path, its_code in _there(store, parent_run) if its_code == code), None)


def digest_of(path: Path) -> str:
    """Return a digest of a checkpoint's weights. Raises Damaged if its meta.json is missing or invalid."""
    return digest(meta_of(path)["files"][_WEIGHTS])


def other_weights(store: Store, record: TrainingResult) -> bool:
    """Return whether the parent run of a branch now has other weights at the step at which the branch began.

    Return False if the run is not a branch, or if its parent run has no checkpoint of this step any more.
    """
    if not record.parent_run.run_id:
        return False
    there = next((path for path, _ in _there(store, ParentRun(record.parent_run.run_id, record.parent_run.step))), None)
    return there is not None and digest_of(there) != record.parent_run.weights


def _there(store: Store, parent_run: ParentRun) -> Iterator[tuple[Path, str]]:
    """Yield the complete checkpoints of the step with the digests of their code, newest attempt first."""
    for number in reversed(store.attempts(parent_run.run_id)):
        path = store.attempt_folder(parent_run.run_id, number) / "checkpoints" / f"step-{parent_run.step:08d}"
        try:
            meta = meta_of(path)
        except UserError:  # missing or damaged
            continue
        if _WEIGHTS in meta["files"] and all((path / name).is_file() for name in meta["files"]):
            yield path, str(meta.get("code"))


# A branch takes over the parent run's weights, the state of its optimizer and its number of steps. All later steps are
# computed from the settings of the branch, as in a resumed training. The network and its vocabulary must therefore be
# equal. The learning rates up to the branch must be equal, too. A schedule is a function of the step, so the settings
# of the branch would otherwise describe rates that were never used.


# Settings that a branch may change, because they affect only the steps after it begins. Names that end in a dot are
# groups. The learning rate and the optimizer are checked separately.
ACT_STEP_BY_STEP = (
    "training.", "evaluation.", "model.dropout", "model.attention_dropout", "model.activation_dropout",
    "model.layer_drop", "data.max_pieces", "data.window", "data.mix_documents",
)  # fmt: skip
_TEXT = (
    "data.corpus",
    "data.source",
    "data.target",
    "data.train",
    "data.dev",
    "data.test",
    "data.builtin_pairs",
    "data.builtin_version",
)
_SETS = ("data.dev", "data.test")
_SCHEDULE = tuple(
    f"training.{name}"
    for name in (
        "schedule", "train_steps", "warmup_steps", "learning_rate", "learning_rate_scale", "min_lr_ratio",
        "stable_ratio", "plateau_patience",
    )
)  # fmt: skip


def why_no_branch(parent_run: RunConfig, config: RunConfig, step: int) -> str:
    """Return the reason why a run of `config` cannot start from a run of `parent_run` after `step`; "" if it can."""
    theirs, own = dict(flatten(parent_run)), dict(flatten(config))
    # Compare the names of both configurations, because a setting of a network change may be in only one of them.
    changed = [name for name in {**own, **theirs} if name != "seed" and own.get(name) != theirs.get(name)]
    early = [name for name in changed if not _acts_late(name, config)]
    if early:
        text = any(name in _TEXT for name in early)
        return (
            f"it differs from its parent run in {', '.join(early)}, which {_act(early)} before step {step:,}: the "
            f"network, its initialisation and its pieces come from the parent run{_OTHER_TEXT if text else ''}"
        )
    if "training.optimizer" in changed:
        return (
            f"it differs from its parent run in training.optimizer ({parent_run.training.optimizer}, and "
            f"{config.training.optimizer} here): a branch continues with the state of the parent run's optimizer. The "
            "optimizer's settings, such as training.weight_decay, may differ"
        )
    return _rates(parent_run, config, step, changed) or _checkpoints(config, step)


_OTHER_TEXT = ". Pieces are learnt from the training text, so only a branch with data.units = byte may read another"


def _act(names: list[str]) -> str:
    return "act" if len(names) > 1 else "acts"


def _acts_late(name: str, config: RunConfig) -> bool:
    groups = tuple(late for late in ACT_STEP_BY_STEP if late.endswith("."))
    if name in ACT_STEP_BY_STEP or name.startswith(groups) or name in _SETS:
        return True
    return name in _TEXT and config.data.units == "byte"


def _rates(parent_run: RunConfig, config: RunConfig, step: int, changed: list[str]) -> str:
    """Return a message that the learning rates up to the branch differ from the parent run's; "" if they are equal."""
    named = [name for name in changed if name in _SCHEDULE]
    if "plateau" in (parent_run.training.schedule, config.training.schedule):
        named = [name for name in changed if name in (*_SCHEDULE, "training.eval_steps") and "train_steps" not in name]
        if named:
            return (
                f"it differs from its parent run in {', '.join(named)}, which {_act(named)} before step {step:,}: the "
                "rate of the schedule plateau follows all measurements on dev from the start"
            )
        return ""
    if not named:
        return ""
    width = config.model.d_model
    before, after = make_schedule(parent_run.training, width), make_schedule(config.training, width)
    for at in range(1, step + 1):
        if not math.isclose(before(at), after(at), rel_tol=1e-12, abs_tol=0.0):
            return (
                f"it differs from its parent run in {', '.join(named)}, so the learning rate differs already at step "
                f"{at:,} ({before(at):.3g}, and {after(at):.3g} here), before step {step:,}. The learning rates of a "
                "branch may differ only after that step"
            )
    return ""


def _checkpoints(config: RunConfig, step: int) -> str:
    """Return a message if the evaluation would need checkpoints of the parent run, or "" if it would not."""
    training, choice = config.training, config.evaluation.checkpoint
    kind, _, number = choice.partition(":")
    every = training.eval_steps if kind == "best" else training.checkpoint_steps
    steps = training.train_steps
    first = spaced_steps(steps, every, int(number))[0] if kind == "average" else steps - steps % every if every else 0
    if kind == "last" or first > step:
        return ""
    return (
        f'evaluation.checkpoint = "{choice}" would need the checkpoint of step {first:,}, which belongs to the parent '
        f"run: an evaluation of a branch uses only checkpoints after step {step:,}. Set training."
        f"{'eval_steps' if kind == 'best' else 'checkpoint_steps'} to a smaller value"
    )
