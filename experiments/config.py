"""A run's configuration and its two identities. Imports no torch.

`run_id` names a training, `eval_id` one decode and scoring of its weights (see `run_identity`, `eval_identity`).
The defaults are the paper's base and are frozen: changing one would rename every run of every store.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from model.config import ModelConfig, Section


def _words(value: Any) -> Any:
    """A list of names may be written as one text with commas: `--set evaluation.sets=dev,test`."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_words), Field(strict=False)]


class DataConfig(Section):
    """Which corpus, and how text becomes pieces."""

    corpus: str = Field("builtin", description='"builtin" (generated) or a folder with train.<lang>, dev.<lang> …')
    source: str | None = Field(None, description="source language; seen from the file names if unset")
    target: str | None = Field(None, description="target language; seen from the file names if unset")
    train: Names = Field((), description="names of the training files without the language, joined")
    dev: Names = Field((), description="the same for the development set")
    test: Names = Field((), description="test sets to know; every test* file if unset")
    vocab_size: int = Field(37000, ge=16, description="pieces of the BPE vocabulary, special symbols included")
    max_pieces: int = Field(
        256, ge=2, description="training pairs with a longer side (EOS counted) are dropped and counted"
    )
    builtin_pairs: int = Field(20000, ge=1, description="training pairs that the built-in corpus generates")

    @field_validator("corpus")
    @classmethod
    def _found_from_anywhere(cls, corpus: str) -> str:
        """A folder's path is made absolute: whoever works the queue may stand in another folder."""
        return corpus if corpus == "builtin" else str(Path(corpus).expanduser().absolute())


PrecisionChoice = Literal["auto", "fp32", "bf16"]


class TrainingConfig(Section):
    """Section 5 of the paper. A step is one optimizer update."""

    train_steps: int = Field(100_000, ge=0, description="optimizer updates; 0 leaves the model as initialised")
    warmup_steps: int = Field(4000, ge=1, description="steps of linear warm-up (section 5.3)")
    learning_rate_scale: float = Field(1.0, gt=0, description="factor on the paper's schedule; 1 in the paper")
    tokens_per_batch: int = Field(
        25000, ge=1, description="cap on source and on target pieces of a step, padding left out"
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="epsilon_ls (section 5.4)")
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.98, ge=0, lt=1)
    adam_epsilon: float = Field(1e-9, gt=0)
    clip_norm: float = Field(0.0, ge=0, description="gradient norm is clipped to this; 0: never, as in the paper")
    weight_decay: float = Field(0.0, ge=0, description="decoupled weight decay; 0 in the paper")
    precision: PrecisionChoice = Field(
        "auto", description="arithmetic of the forward and backward pass; auto: bf16 where the device has it"
    )
    deterministic: bool = Field(
        False, description="only kernels that give the same bits every time; an error where there is none"
    )
    compile: bool = Field(
        False, description="compile the layers for a few padded shapes; `ablations probe` shows whether it pays"
    )
    checkpoint_steps: int = Field(1000, ge=1, description="a checkpoint every so many steps, and one at the end")
    checkpoint_minutes: float = Field(
        0.0, ge=0, description="a checkpoint also when so many minutes have passed without one; 0: by steps alone"
    )
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept while running; averaging uses these")
    keep_optimizer: bool = Field(
        True, description="after the end, keep Adam's moments in the checkpoints: more train_steps go on from there"
    )
    eval_steps: int = Field(0, ge=0, description="dev perplexity every so many steps; 0: only in evaluation")


CHECKPOINTS = "last|best|average:[1-9][0-9]*"  # a regular expression of the choices


class EvaluationConfig(Section):
    """How finished weights are decoded and scored (section 6.1). Enters eval_id only."""

    sets: Names = Field(("dev",), description='"dev" and names of test sets; "test": all of them')
    checkpoint: str = Field("last", pattern=f"^({CHECKPOINTS})$", description="last, best (on dev) or average:K")
    beam_size: int = Field(4, ge=1)
    length_penalty: float = Field(0.6, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(50, ge=0, description="output is at most this many pieces longer than the input")
    precision: PrecisionChoice = Field(
        "fp32", description="arithmetic of scoring and decoding; fp32 compares rows whatever they were trained in"
    )


# Named by what the inputs' digests say instead (data files), or scored apart from training (evaluation).
# Checkpoints and evaluations during training leave its numbers alone; their spacing enters eval_id where it matters.
# How kernels are chosen and compiled moves roundings, as a device does: it is recorded with every run.
NOT_IN_RUN_ID = (
    "evaluation.",
    "data.corpus",
    "data.source",
    "data.target",
    "data.train",
    "data.dev",
    "data.test",
    "data.builtin_pairs",
    "training.checkpoint_steps",
    "training.checkpoint_minutes",
    "training.keep_checkpoints",
    "training.keep_optimizer",
    "training.eval_steps",
    "training.deterministic",
    "training.compile",
)
# What two trainings may differ in and still be one longer training of the same schedule.
NOT_IN_LINEAGE = ("training.train_steps",)


GIVEN_ELSEWHERE = {
    "task": "the study's own `task` names it",
    "seed": "seeds are 1..N: use `seeds`, or --seeds N",
}


@dataclass(frozen=True)
class SettingRoles:
    """Which settings mean more to the harness than a value. Names are dotted; one that ends in a dot is a group."""

    not_in_run_id: tuple[str, ...] = ()  # no trained number depends on these
    not_in_lineage: tuple[str, ...] = ()  # may differ between a training and a longer one that continues it
    steps: str = ""  # says how long a training is, for progress; "": none does
    # Whether defaults never change. Then a run is named by what differs from them, and a new setting renames no run;
    # a user may edit defaults at any time, so there the name is made of all settings.
    frozen_defaults: bool = False
    given_elsewhere: Mapping[str, str] = field(default_factory=lambda: GIVEN_ELSEWHERE)  # not for rows; and who does


class TaskConfig(Section):
    """What every configuration has. A task adds its settings (a user's: experiments/tasks/own/settings.py)."""

    setting_roles: ClassVar[SettingRoles] = SettingRoles()

    task: str = ""
    seed: int = Field(1, ge=0)


class RunConfig(TaskConfig):
    """One training of one variation with one seed, and how it is evaluated."""

    setting_roles: ClassVar[SettingRoles] = SettingRoles(
        NOT_IN_RUN_ID, NOT_IN_LINEAGE, steps="training.train_steps", frozen_defaults=True
    )

    task: str = "translation"
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()

    @model_validator(mode="after")
    def _checkpoints_suffice(self) -> Self:
        kind, _, count = self.evaluation.checkpoint.partition(":")
        if kind == "average" and int(count) > self.training.keep_checkpoints:
            raise ValueError(
                f"evaluation.checkpoint averages {count} checkpoints, and training.keep_checkpoints keeps "
                f"{self.training.keep_checkpoints}: set it to {count} or more"
            )
        if kind == "best" and self.training.eval_steps == 0:
            raise ValueError(
                "evaluation.checkpoint is the best on dev, and training.eval_steps = 0 measures none: set it to the "
                "steps between measurements"
            )
        return self


@dataclass(frozen=True)
class DeviceSpec:
    """The devices a child was given. `kind` is "cpu" or "cuda"; CUDA_VISIBLE_DEVICES is set before it starts."""

    kind: str = "cpu"
    threads: int = 1
    memory_gb: float | None = None  # cap; None: all there is
    count: int = 1  # devices that train the run together
    share: float = 1.0  # of each device: less where runs share it


_PLAIN = {str, int, float, bool, list, type(None)}


def flatten(config: BaseModel | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("model.d_model", 512) … for every setting, JSON types only."""
    values = config.model_dump(mode="json") if isinstance(config, BaseModel) else config
    for key, value in values.items():
        # plain types are told apart by themselves: a thousand runs have a hundred thousand settings
        if type(value) is dict or (type(value) not in _PLAIN and isinstance(value, Mapping)):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@cache  # of every run of a plan the difference from these is wanted
def defaults(kind: type[BaseModel]) -> Mapping[str, Any]:
    """Every setting of a kind of configuration as it is where nobody sets it. Not to be written to."""
    return MappingProxyType(dict(flatten(kind())))


def difference(config: BaseModel, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `config`, by dotted name, that are not among `theirs` or other there."""
    return {key: value for key, value in flatten(config) if key not in theirs or theirs[key] != value}


def identity_settings(config: TaskConfig) -> dict[str, Any]:
    """The settings that decide what is trained, by dotted name, as far as they make a run's name."""
    return _without(dict(flatten(config)), ("task", "seed", *config.setting_roles.not_in_run_id))


def total_steps(config: TaskConfig) -> int | None:
    """How long the training is, where a setting says so in whole steps."""
    value = dict(flatten(config)).get(config.setting_roles.steps)
    return value if isinstance(value, int) else None


def digest(payload: Any) -> str:
    """16 hex digits of the SHA-256 of canonical JSON (sorted keys, no spaces)."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_identity(config: TaskConfig, inputs: Mapping[str, str]) -> str:
    """The run_id: what training computes is a function of these and of the code, nothing else.

    `inputs` are digests of what training reads (the task's `inputs`): a corpus's recipe or content.
    """
    return digest(_training_payload(config, inputs))


PROBE_ID = "0" * 16  # of a training that is only measured: no table names it


def lineage(config: TaskConfig, inputs: Mapping[str, str]) -> str:
    """Equal for runs that differ only in train_steps: the longer may continue the shorter."""
    payload = _training_payload(config, inputs)
    payload["settings"] = _without(payload["settings"], config.setting_roles.not_in_lineage)
    return digest(payload)


def _training_payload(config: TaskConfig, inputs: Mapping[str, str]) -> dict[str, Any]:
    roles = config.setting_roles
    settings = difference(config, defaults(type(config))) if roles.frozen_defaults else dict(flatten(config))
    settings = _without(settings, ("task", "seed", *roles.not_in_run_id))
    return {"task": config.task, "seed": config.seed, "settings": settings, "inputs": dict(inputs)}


def _without(settings: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    groups = tuple(name for name in names if name.endswith("."))
    return {k: v for k, v in settings.items() if k not in names and not k.startswith(groups)}


def eval_identity(run_id: str, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
    """The eval_id: a run's weights, the decoding settings in full, digests of the set that is decoded."""
    return digest({"run_id": run_id, "settings": dict(settings), "inputs": dict(inputs)})
