"""The configuration of one run of a built-in task, and the checks that involve several groups of settings.

The defaults are the base model of the paper. The defaults never change, because a changed default would change the
run_ids of all runs in all stores (identity.py). Imports no torch.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Self

from pydantic import model_validator

from experiments.config.data import DataConfig
from experiments.config.evaluation import UNNAMED_AT_DEFAULT, EvaluationConfig
from experiments.config.network_change import Changeable, changes_of
from experiments.config.task_config import SettingRoles, TaskConfig
from experiments.config.training import SCHEDULES, TrainingConfig, momentum, unread_in_training
from model import cost
from model.config import ModelConfig
from model.settings import SIDES

# Settings that are not part of run_id, for these reasons:
# - evaluation: these settings do not change the training.
# - data: run_id includes a digest of the corpus, which does not depend on the names of its files.
# - checkpoint_steps, keep_checkpoints, eval_steps: these settings do not change the trained weights. An eval_id
#   includes them if they change which weights are evaluated.
# - deterministic, compile, graphs: like another device, they only change rounding errors. Every run records them.
NOT_IN_RUN_ID = (
    "evaluation.",
    "data.corpus",
    "data.source",
    "data.target",
    "data.train",
    "data.dev",
    "data.test",
    "data.builtin_pairs",
    "data.builtin_version",
    "training.checkpoint_steps",
    "training.keep_checkpoints",
    "training.eval_steps",
    "training.deterministic",
    "training.compile",
    "training.graphs",
)
# Settings that may differ between a run and a longer run that continues it.
NOT_IN_LINEAGE = ("training.train_steps",)


class RunConfig(Changeable, TaskConfig):
    """The settings of one run of a built-in task: the training of one row with one seed, and its evaluations."""

    setting_roles: ClassVar[SettingRoles] = SettingRoles(
        NOT_IN_RUN_ID, NOT_IN_LINEAGE, steps="training.train_steps", frozen_defaults=True
    )

    needs_encoder: ClassVar[bool] = True  # whether the task has a source, which an encoder reads

    task: str = "translation"
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    def described(self) -> list[str]:
        """Return lines on an encoder or decoder that differs from the paper's, and on parameters that a token skips."""
        sides = [side for side in SIDES if getattr(self.model, side) != getattr(type(self.model)(), side)]
        lines = [f"{side}: {'; '.join(self.model.expanded(side)) or 'none'}" for side in sides]
        idle = cost.num_params(self.model, 1) - cost.active_params(self.model, 1)  # the vocabulary size does not matter
        if idle:
            lines.append(f"experts: of the parameters a token leaves {idle / 1e6:.2f}M unused")
        return lines

    def roles(self) -> SettingRoles:
        """Return the roles of the settings. They depend on the schedule of the learning rate.

        A schedule that depends on train_steps does not allow a longer run to continue a shorter one. The schedule
        `plateau` depends on the measurements on dev, so `training.eval_steps` is then part of run_id.
        """
        roles, schedule = self.setting_roles, SCHEDULES[self.training.schedule]
        if not schedule.continues:
            roles = replace(roles, not_in_lineage=())
        if self.training.schedule == "plateau":
            roles = replace(roles, not_in_run_id=tuple(n for n in roles.not_in_run_id if n != "training.eval_steps"))
        return roles

    def unread(self, names: Iterable[str]) -> list[str]:
        """Return those of the named settings that do not change the data, the network or the training."""
        unread = {f"training.{name}" for name, _ in unread_in_training(self.training)}
        unread |= {"data.vocab_size"} if self.data.sized_by_text else set()
        read = self.model.settings_read()
        return [n for n in names if n in unread or (n.startswith("model.") and n.removeprefix("model.") not in read)]

    def why_unread(self, name: str) -> str:
        if name == "data.vocab_size":
            every = {"word": "word", "char": "character", "byte": "byte"}[self.data.units]
            return f"every {every} is a piece here (data.units = {self.data.units})"
        section, _, rest = name.partition(".")
        if section == "training":
            return dict(unread_in_training(self.training))[rest]
        return (
            f'model.encoder = "{self.model.encoder}" and model.decoder = "{self.model.decoder}" do not read it; '
            f"{self.model.readers(rest)}"
        )

    @model_validator(mode="after")
    def _trains(self) -> Self:
        training, samples = self.training, self.training.gleu_samples
        if training.schedule == "plateau" and training.eval_steps == 0:
            raise ValueError(
                "training.schedule = plateau follows the perplexity on dev, but training.eval_steps = 0 measures none: "
                "set it to the steps between measurements"
            )
        if training.optimizer == "sgd" and training.nesterov and not momentum(training):
            raise ValueError("training.nesterov needs a momentum, but training.momentum = 0: change one of them")
        compiled = training.compile in (True, "cuda")  # "auto" does not compile if a row cannot be compiled
        if compiled and (eager := self.model.not_compiled()):
            raise ValueError(
                f"training.compile is set, but torch cannot compile {', '.join(eager)} of this architecture: set "
                "training.compile to false in this row"
            )
        if compiled and (changes := changes_of(self)):
            raise ValueError(
                f"training.compile is set, but {' and '.join(changes)} of the row changes the network, and compiled "
                "layers do not see every change: set training.compile to false in this row"
            )
        if samples and (samples == 1 or compiled or not self.needs_encoder):
            raise ValueError(
                f"training.gleu_samples = {samples}: the expected GLEU needs 2 samples or more, whose rewards are "
                "compared with their mean, a task with sources and references, and training.compile = false"
            )
        return self

    @model_validator(mode="after")
    def _evaluates(self) -> Self:
        if self.needs_encoder and not self.model.encoder:
            raise ValueError(f"model.encoder is empty, but the task {self.task} needs an encoder to read the source")
        for name in UNNAMED_AT_DEFAULT:
            if getattr(self.evaluation, name) and not self.model.attends_to_source():
                raise ValueError(
                    f"evaluation.{name} reads the attention to the source, and no layer of model.decoder = "
                    f'"{self.model.decoder}" has one: leave it at its default in this row'
                )
        kind, _, count = self.evaluation.checkpoint.partition(":")
        if kind == "average" and int(count) > self.training.keep_checkpoints:
            raise ValueError(
                f"evaluation.checkpoint averages {count} checkpoints, but training.keep_checkpoints keeps "
                f"{self.training.keep_checkpoints}: set it to {count} or more"
            )
        if kind == "best" and self.training.eval_steps == 0:
            raise ValueError(
                "evaluation.checkpoint is the best on dev, but training.eval_steps = 0 measures none: set it to the "
                "steps between measurements"
            )
        return self
