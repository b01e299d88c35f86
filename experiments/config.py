"""A run's configuration: every setting with its default, meaning and unit. Imports no torch.

The defaults are the paper's base and are frozen: changing one would rename every run of every store (identity.py).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Self

from pydantic import BaseModel, BeforeValidator, Field, field_validator, model_validator

from model import architecture, cost
from model.config import ModelConfig
from model.strict import StrictModel

# --- What the optimizers and the schedules of the learning rate read, keep and need
# Their formulas are in experiments/training/optimizers.py and experiments/training/schedules.py.


OptimizerName = Literal["adam", "adamw", "sgd", "adafactor", "lion", "muon"]
ScheduleName = Literal["inverse_sqrt", "constant", "cosine", "linear", "warmup_stable_decay", "plateau"]


class OptimizerFacts(NamedTuple):
    """An optimizer's settings and needs."""

    reads: tuple[str, ...]  # names of its settings
    momentum: float = 0.0  # where training.momentum is unset
    nesterov: bool = False  # where training.nesterov is unset


class ScheduleFacts(NamedTuple):
    """A schedule's settings. Each of them reads warmup_steps and learning_rate."""

    words: str  # its name in a sentence
    reads: tuple[str, ...] = ()
    continues: bool = True  # whether the rate of a step is the same in a longer training


_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
OPTIMIZERS: dict[OptimizerName, OptimizerFacts] = {
    "adam": OptimizerFacts((*_ADAM, "weight_decay")),
    "adamw": OptimizerFacts((*_ADAM, "weight_decay")),
    "sgd": OptimizerFacts(("momentum", "nesterov", "weight_decay"), momentum=0.9),
    "adafactor": OptimizerFacts(("weight_decay",)),
    "lion": OptimizerFacts(("lion_beta1", "lion_beta2", "weight_decay")),
    # its own, and Adam's for what is no matrix of a layer
    "muon": OptimizerFacts(("momentum", "nesterov", *_ADAM, "weight_decay"), momentum=0.95, nesterov=True),
}
SCHEDULES: dict[ScheduleName, ScheduleFacts] = {
    "inverse_sqrt": ScheduleFacts("the inverse-square-root schedule"),
    "constant": ScheduleFacts("a constant learning rate"),
    "cosine": ScheduleFacts("a cosine schedule", ("min_lr_ratio",), continues=False),
    "linear": ScheduleFacts("a linear schedule", ("min_lr_ratio",), continues=False),
    "warmup_stable_decay": ScheduleFacts(
        "a warm-up–stable–decay schedule", ("min_lr_ratio", "stable_ratio"), continues=False
    ),
    "plateau": ScheduleFacts("halving on plateau of the perplexity on dev", ("plateau_patience",)),
}


def unread_in_training(training: "TrainingConfig") -> Iterator[tuple[str, str]]:
    """Names of the settings that this optimizer and this schedule do not read, each with what would."""
    if training.learning_rate is not None:
        yield "learning_rate_scale", "training.learning_rate is set, which is read in its place"
    if not training.gleu_samples:
        yield "likelihood_weight", "training.gleu_samples = 0 leaves the likelihood alone"
    for setting, choice, table in (
        ("optimizer", training.optimizer, OPTIMIZERS),
        ("schedule", training.schedule, SCHEDULES),
    ):
        for name in dict.fromkeys(name for facts in table.values() for name in facts.reads):
            readers = [other for other, facts in table.items() if name in facts.reads]
            if choice not in readers:
                *first, last = readers
                words = f"{', '.join(first)} and {last} read it" if first else f"{last} reads it"
                yield name, f"training.{setting} = {choice} does not read it; {words}"


def momentum(training: "TrainingConfig") -> float:
    """The momentum of sgd or muon."""
    usual = OPTIMIZERS[training.optimizer].momentum
    return usual if training.momentum is None else training.momentum


def nesterov(training: "TrainingConfig") -> bool:
    """Whether sgd or muon look ahead by their momentum."""
    return OPTIMIZERS[training.optimizer].nesterov if training.nesterov is None else training.nesterov


def state_per_weight(training: "TrainingConfig", hidden: float = 0.0) -> float:
    """Numbers that an optimizer keeps per weight. hidden: the share of weights in matrices of the layers, for muon."""
    if training.optimizer == "adafactor":
        return 0.0  # one per row and one per column: less than a hundredth
    if training.optimizer == "sgd":
        return 1.0 if momentum(training) else 0.0
    return {"lion": 1.0, "muon": 2.0 - hidden}.get(training.optimizer, 2.0)


# --- The settings


def _words(value: Any) -> Any:
    """Accept a list of names as one text with commas: `--set evaluation.sets=dev,test`."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_words), Field(strict=False)]
Lines = Annotated[tuple[str, ...], Field(strict=False)]  # such as "layers.*.attn -> identity": docs/network-rows.md
LARGEST_INTEGER = (1 << 63) - 1  # TOML's own limit, and SQLite's
MOST_GENERATED = 10_000_000  # pairs of a built-in corpus; more are a slip, which would fill the disk


class DataConfig(StrictModel):
    """The corpus, and how text becomes pieces."""

    corpus: str = Field("builtin", description='"builtin" (generated) or a folder with train.<lang>, dev.<lang> …')
    source: str | None = Field(None, description="source language; from the file names if unset")
    target: str | None = Field(None, description="target language; from the file names if unset")
    train: Names = Field((), description="names of the training files without the language, joined")
    dev: Names = Field((), description="the same for the development set")
    test: Names = Field((), description="names of the test sets; every test* file if unset")
    vocab_size: int = Field(
        37000, ge=16, description="pieces of the vocabulary, special symbols included; char and byte do not read it"
    )
    max_pieces: int = Field(
        256, ge=2, description="training pairs with a longer side (EOS counted) are dropped and counted"
    )
    builtin_pairs: int = Field(
        20000, ge=1, le=MOST_GENERATED, description="training pairs that the built-in corpus generates"
    )
    units: Literal["bpe", "unigram", "wordpiece", "word", "char", "byte"] = Field(
        "bpe",
        description="pieces: learnt by BPE, as a unigram model, or that and matched greedily (wordpiece); whole words, "
        "characters, bytes of UTF-8",
    )

    @property
    def sized_by_text(self) -> bool:
        """Whether every unit of the training text is a piece, so that `vocab_size` is not read."""
        return self.units in ("char", "byte")

    @field_validator("corpus")
    @classmethod
    def _found_from_anywhere(cls, corpus: str) -> str:
        """Make a folder's path absolute: the coordinator may run in another folder."""
        return corpus if corpus == "builtin" else str(Path(corpus).expanduser().absolute())


PrecisionChoice = Literal["auto", "fp32", "bf16"]


class TrainingConfig(StrictModel):
    """Section 5 of the paper. A step is one optimizer update."""

    train_steps: int = Field(100_000, ge=0, description="optimizer updates; 0 leaves the model as initialised")
    warmup_steps: int = Field(4000, ge=1, description="steps of linear warm-up (section 5.3)")
    schedule: ScheduleName = Field(
        "inverse_sqrt", description="course of the learning rate after its warm-up; the paper's is inverse_sqrt"
    )
    learning_rate: float | None = Field(
        None, gt=0, description="highest rate; unset: learning_rate_scale / sqrt(d_model * warmup_steps), the paper's"
    )
    learning_rate_scale: float = Field(1.0, gt=0, description="factor on the paper's schedule; 1 in the paper")
    min_lr_ratio: float = Field(
        0.0, ge=0, le=1, description="rate of the last step over the highest (cosine, linear, warmup_stable_decay)"
    )
    stable_ratio: float = Field(
        0.9, ge=0, le=1, description="share of train_steps before the decay begins (warmup_stable_decay)"
    )
    plateau_patience: int = Field(
        2, ge=0, description="measurements on dev in a row without a lower perplexity; one more halves the rate"
    )
    tokens_per_batch: int = Field(
        25000, ge=1, description="most source pieces and most target pieces of a step, without padding"
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="epsilon_ls (section 5.4)")
    optimizer: OptimizerName = Field("adam", description="rule that turns gradients into updates")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="decay of Adam's mean of gradients (section 5.3)")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="decay of Adam's mean of their squares (section 5.3)")
    adam_epsilon: float = Field(1e-9, gt=0, description="added to the root of that mean (section 5.3)")
    momentum: float | None = Field(None, ge=0, lt=1, description="of sgd and muon; unset: 0.9 and 0.95")
    nesterov: bool | None = Field(None, description="Nesterov's momentum; unset: false for sgd, true for muon")
    lion_beta1: float = Field(0.9, ge=0, lt=1, description="of the direction of a step (Chen 2023, Algorithm 2)")
    lion_beta2: float = Field(0.99, ge=0, lt=1, description="of the mean of gradients (Chen 2023, Algorithm 2)")
    clip_norm: float = Field(0.0, ge=0, description="gradient norm is clipped to this; 0: never, as in the paper")
    weight_decay: float = Field(0.0, ge=0, description="decay of matrices, decoupled except for sgd; 0 in the paper")
    precision: PrecisionChoice = Field(
        "auto",
        description="arithmetic of the forward and backward pass; auto: bf16 if the device has instructions for it",
    )
    deterministic: bool = Field(
        False, description="use only kernels that always give the same bits; an error if there is none"
    )
    compile: bool | Literal["auto", "cuda"] = Field(
        False,
        description="compile the layers; cuda: on GPUs alone; auto: cuda or false for all rows of a table, by how long "
        "they train",
    )
    graphs: bool = Field(False, description="on a GPU, replay steps of known shapes as CUDA graphs")
    checkpoint_steps: int = Field(1000, ge=1, description="a checkpoint every so many steps, and one at the end")
    keep_checkpoints: int = Field(2, ge=1, description="checkpoints kept while running; averaging uses these")
    eval_steps: int = Field(0, ge=0, description="dev perplexity every so many steps; 0: only in evaluation")
    gleu_samples: int = Field(
        0, ge=0, description="sequences drawn for each sentence to raise the expected GLEU (GNMT: 15); 0: none"
    )
    likelihood_weight: float = Field(0.017, ge=0, description="alpha: weight of the likelihood beside expected GLEU")


CHECKPOINTS = "last|best|average:[1-9][0-9]*"  # a regular expression of the allowed values


class EvaluationConfig(StrictModel):
    """How finished weights are decoded and scored (section 6.1). Part of eval_id only."""

    sets: Names = Field(("dev",), description='"dev" and names of test sets; "test": all of them')
    checkpoint: str = Field("last", pattern=f"^({CHECKPOINTS})$", description="last, best (on dev) or average:K")
    beam_size: int = Field(4, ge=1, le=10_000, description="hypotheses kept at each step of the search (section 6.1)")
    length_penalty: float = Field(0.6, ge=0, description="alpha of ((5 + |Y|) / 6)^alpha")
    max_extra_length: int = Field(
        50, ge=0, le=1_000_000, description="output is at most this many pieces longer than the input"
    )
    precision: PrecisionChoice = Field(
        "fp32",
        description="arithmetic of scoring and decoding; fp32 compares rows independently of their training precision",
    )
    coverage_penalty: float = Field(
        0.0, ge=0, description="beta of GNMT's score for attention to every source piece; 0 in the paper"
    )
    replace_unknown: bool = Field(
        False, description="an unknown piece of the output becomes the source piece with most attention (PosUnk)"
    )
    modules: Lines = Field((), description="changes of the trained network: docs/network-rows.md")


UNNAMED_AT_DEFAULT = ("coverage_penalty", "replace_unknown")  # newer settings: at their default in no eval_id
OF_SEARCH = ("beam_size", "length_penalty", "max_extra_length", *UNNAMED_AT_DEFAULT)  # what decoding reads

# Settings that are not part of run_id. Data files: the inputs' digests cover them. Evaluation: it is separate from
# training. Checkpoints and evaluations during training do not change its numbers; their spacing is part of eval_id
# where it matters. The choice and compilation of kernels changes roundings, as a device does: every run records it.
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
    "training.keep_checkpoints",
    "training.eval_steps",
    "training.deterministic",
    "training.compile",
    "training.graphs",
)
# Settings in which two trainings may differ and still be one longer training of the same schedule.
NOT_IN_LINEAGE = ("training.train_steps",)


GIVEN_ELSEWHERE = {
    "task": "the study's own `task` names it",
    "seed": "seeds are 1..N: use `seeds`, or --seeds N",
}


@dataclass(frozen=True)
class SettingRoles:
    """Settings with a special meaning to the harness. Names are dotted; a name that ends in a dot is a group."""

    not_in_run_id: tuple[str, ...] = ()  # no trained number depends on these
    not_in_lineage: tuple[str, ...] = ()  # may differ between a training and a longer one that continues it
    steps: str = ""  # the setting for the length of a training, used for progress; "": none
    # Whether defaults never change. A user may edit those of a trainer at any time; then a run is also compared with
    # the settings that it recorded (store/run_names.py).
    frozen_defaults: bool = False
    always_named: tuple[str, ...] = ()  # settings that name a run also where they have their defaults
    # The settings as they are compared with those of a record, where a part of one counts alone (a command's words).
    compared_as: Callable[[Mapping[str, Any]], dict[str, Any]] = dict
    # settings that rows cannot set → where they are set
    given_elsewhere: Mapping[str, str] = field(default_factory=lambda: GIVEN_ELSEWHERE)


class TaskConfig(StrictModel):
    """The part that every configuration has. A task adds its settings (a user's: experiments/tasks/own/function.py)."""

    setting_roles: ClassVar[SettingRoles] = SettingRoles()

    task: str = ""
    seed: int = Field(1, ge=0)

    def roles(self) -> SettingRoles:
        """The roles in this configuration: that of one setting may depend on another."""
        return self.setting_roles

    def unread(self, names: Iterable[str]) -> list[str]:
        """Those of the named settings on which nothing depends in this configuration."""
        return []

    def why_unread(self, name: str) -> str:
        """Why nothing depends on a setting that is `unread`, and what would read it."""
        raise KeyError(name)

    def described(self) -> list[str]:
        """What settings stand for, a line each, where their text is short for more."""
        return []


class RunConfig(TaskConfig):
    """One training of one variation with one seed, and its evaluation."""

    setting_roles: ClassVar[SettingRoles] = SettingRoles(
        NOT_IN_RUN_ID, NOT_IN_LINEAGE, steps="training.train_steps", frozen_defaults=True
    )

    needs_encoder: ClassVar[bool] = True  # which reads a source

    task: str = "translation"
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    modules: Lines = Field((), description="changes of the network before its training (docs/network-rows.md)")

    def described(self) -> list[str]:
        """The layers of an encoder or a decoder that is not the paper's, and what a token leaves out of experts."""
        sides = [side for side in architecture.SIDES if getattr(self.model, side) != getattr(type(self.model)(), side)]
        lines = [f"{side}: {'; '.join(architecture.expanded(self.model, side)) or 'none'}" for side in sides]
        idle = cost.num_params(self.model, 1) - cost.active_params(self.model, 1)  # whatever the vocabulary
        return [*lines, f"experts: of the parameters a token leaves {idle / 1e6:.2f}M unused"] if idle else lines

    def roles(self) -> SettingRoles:
        """A schedule may depend on the length of the training, or on the measurements on dev during it."""
        roles, schedule = self.setting_roles, SCHEDULES[self.training.schedule]
        if not schedule.continues:
            roles = replace(roles, not_in_lineage=())
        if self.training.schedule == "plateau":
            roles = replace(roles, not_in_run_id=tuple(n for n in roles.not_in_run_id if n != "training.eval_steps"))
        return roles

    def unread(self, names: Iterable[str]) -> list[str]:
        """Settings on which neither the data nor the network nor the training depends."""
        unread = {f"training.{name}" for name, _ in unread_in_training(self.training)}
        unread |= {"data.vocab_size"} if self.data.sized_by_text else set()
        read = architecture.settings_read(self.model)
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
            f"{architecture.readers(self.model, rest)}"
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
            raise ValueError("training.nesterov needs a momentum, but training.momentum = 0: set one of them otherwise")
        compiled = training.compile in (True, "cuda")  # auto compiles nothing where a row cannot be compiled
        if compiled and (eager := architecture.not_compiled(self.model)):
            raise ValueError(
                f"training.compile is set, but torch cannot compile {', '.join(eager)} of this architecture: set "
                "training.compile to false in this row"
            )
        if compiled and self.modules:
            raise ValueError(
                "training.compile is set, but the row changes modules of the network, and compiled layers do not see "
                "every change: set training.compile to false in this row"
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
            raise ValueError(f"model.encoder is empty: the task {self.task} needs an encoder, which reads the source")
        for name in UNNAMED_AT_DEFAULT:
            if getattr(self.evaluation, name) and not architecture.attends_to_source(self.model):
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


@dataclass(frozen=True)
class DeviceSpec:
    """The devices of a child. `kind` is "cpu" or "cuda"; CUDA_VISIBLE_DEVICES is set before the child starts."""

    kind: str = "cpu"
    threads: int = 1  # of each process; every device has one
    memory_gb: float | None = None  # limit of all `count` devices together; None: no limit
    count: int = 1  # devices that train the run together
    share: float = 1.0  # fraction of each device; less than 1 if runs share it


def unstorable(value: Any) -> str:
    """Why no run can have this value among its settings, in words; "" if it can."""
    if isinstance(value, list | tuple | set | frozenset):
        return next(filter(None, map(unstorable, value)), "")
    if isinstance(value, float) and not math.isfinite(value):
        return "expected a finite number"  # identities are hashes of canonical JSON, which has no others
    if isinstance(value, int) and not -LARGEST_INTEGER <= value <= LARGEST_INTEGER:
        return f"an integer may be at most {LARGEST_INTEGER:,}"
    if isinstance(value, str) and ("\0" in value or value != value.encode(errors="replace").decode()):
        return "it has a NUL, or a character that is not Unicode"
    return ""


_PLAIN = {str, int, float, bool, list, type(None)}


def flatten(config: BaseModel | Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("model.d_model", 512) … for every setting, with JSON types only."""
    values = config.model_dump(mode="json") if isinstance(config, BaseModel) else config
    for key, value in values.items():
        # plain types first, for speed: a thousand runs have a hundred thousand settings
        if type(value) is dict or (type(value) not in _PLAIN and isinstance(value, Mapping)):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


@cache  # needed for every run of a plan
def defaults(kind: type[BaseModel]) -> Mapping[str, Any]:
    """The default of every setting of a kind of configuration, by dotted name. Do not modify."""
    return MappingProxyType(dict(flatten(kind())))


def difference(config: BaseModel, theirs: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `config`, by dotted name, that are missing or different in `theirs`."""
    return {key: value for key, value in flatten(config) if key not in theirs or theirs[key] != value}


def total_steps(config: TaskConfig) -> int | None:
    """Training steps, if a setting gives them as an integer; otherwise None."""
    value = dict(flatten(config)).get(config.setting_roles.steps)
    return value if isinstance(value, int) else None
