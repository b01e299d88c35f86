"""Settings of the training, and tables of the settings that each optimizer and schedule reads. Imports no torch.

The formulas are in experiments/training/optimizers.py and experiments/training/schedules.py.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from pydantic import Field

from experiments.config.field_types import PrecisionChoice
from model.strict import StrictModel

OptimizerName = Literal["adam", "adamw", "sgd", "adafactor", "lion", "muon"]
ScheduleName = Literal["inverse_sqrt", "constant", "cosine", "linear", "warmup_stable_decay", "plateau"]


class OptimizerFacts(NamedTuple):
    """The settings that an optimizer reads, and its default values of momentum and Nesterov's momentum."""

    reads: tuple[str, ...]  # names of the settings
    momentum: float = 0.0  # momentum if training.momentum is unset
    nesterov: bool = False  # whether Nesterov's momentum is used if training.nesterov is unset


class ScheduleFacts(NamedTuple):
    """A schedule of the learning rate, and the settings that it reads."""

    words: str  # name of the schedule for use in a sentence
    reads: tuple[str, ...] = ()  # settings besides warmup_steps and learning_rate, which every schedule reads
    continues: bool = True  # whether the learning rate of a step does not depend on train_steps


_ADAM = ("adam_beta1", "adam_beta2", "adam_epsilon")
OPTIMIZERS: dict[OptimizerName, OptimizerFacts] = {
    "adam": OptimizerFacts((*_ADAM, "weight_decay")),
    "adamw": OptimizerFacts((*_ADAM, "weight_decay")),
    "sgd": OptimizerFacts(("momentum", "nesterov", "weight_decay"), momentum=0.9),
    "adafactor": OptimizerFacts(("weight_decay",)),
    "lion": OptimizerFacts(("lion_beta1", "lion_beta2", "weight_decay")),
    # Parameters that are not matrices of a layer are trained with Adam, so its settings are read too.
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


# A padded batch rarely has more than LARGEST_UNCUT positions per token. A batch is split into micro-batches only if its
# number of positions exceeds the token limit of a micro-batch by more than this factor.
LARGEST_UNCUT = 1.5
SMALLEST_MICRO_BATCH = 64  # tokens; micro-batches are halved down to about this size when memory runs out


class TrainingConfig(StrictModel):
    """Settings of the training (section 5 of the paper). A step is one optimizer update."""

    train_steps: int = Field(100_000, ge=0, description="optimizer updates; 0 leaves the model as initialised")
    warmup_steps: int = Field(4000, ge=1, description="steps of linear warm-up (section 5.3)")
    schedule: ScheduleName = Field(
        "inverse_sqrt", description="schedule of the learning rate after warm-up; the paper's is inverse_sqrt"
    )
    learning_rate: float | None = Field(
        None,
        gt=0,
        description="highest learning rate; learning_rate_scale / sqrt(d_model * warmup_steps), the paper's, if unset",
    )
    learning_rate_scale: float = Field(1.0, gt=0, description="factor on the paper's schedule; 1 in the paper")
    min_lr_ratio: float = Field(
        0.0,
        ge=0,
        le=1,
        description="ratio of the last to the highest learning rate (cosine, linear, warmup_stable_decay)",
    )
    stable_ratio: float = Field(
        0.9, ge=0, le=1, description="share of train_steps before the decay begins (warmup_stable_decay)"
    )
    plateau_patience: int = Field(
        2,
        ge=0,
        description="number of measurements on dev without a lower perplexity; one more halves the learning rate",
    )
    tokens_per_batch: int = Field(
        25000, ge=1, description="maximum number of source pieces and of target pieces of a step, without padding"
    )
    label_smoothing: float = Field(0.1, ge=0, lt=1, description="epsilon_ls (section 5.4)")
    optimizer: OptimizerName = Field("adam", description="optimizer")
    adam_beta1: float = Field(0.9, ge=0, lt=1, description="decay of Adam's mean of gradients (section 5.3)")
    adam_beta2: float = Field(0.98, ge=0, lt=1, description="decay of Adam's mean of squared gradients (section 5.3)")
    adam_epsilon: float = Field(
        1e-9, gt=0, description="added to the root of the mean of squared gradients (section 5.3)"
    )
    momentum: float | None = Field(None, ge=0, lt=1, description="momentum of sgd and muon; 0.9 and 0.95 if unset")
    nesterov: bool | None = Field(None, description="Nesterov's momentum; false for sgd and true for muon if unset")
    lion_beta1: float = Field(
        0.9, ge=0, lt=1, description="Lion's decay in the direction of a step (Chen 2023, Algorithm 2)"
    )
    lion_beta2: float = Field(
        0.99, ge=0, lt=1, description="Lion's decay of the mean of gradients (Chen 2023, Algorithm 2)"
    )
    clip_norm: float = Field(0.0, ge=0, description="gradient norm is clipped to this; 0: never, as in the paper")
    weight_decay: float = Field(
        0.0, ge=0, description="weight decay of matrices, decoupled except for sgd; 0 in the paper"
    )
    precision: PrecisionChoice = Field(
        "auto",
        description="precision of the forward and backward pass; auto: bf16 if the device has instructions for it",
    )
    deterministic: bool = Field(False, description="use only deterministic kernels; an error if there is none")
    compile: bool | Literal["auto", "cuda"] = Field(
        False,
        description="compile the layers; cuda: only on GPUs; auto: cuda or false for all rows of a table, by the "
        "length of training",
    )
    graphs: bool = Field(False, description="on a GPU, replay steps of known shapes as CUDA graphs")
    checkpoint_steps: int = Field(
        1000, ge=1, description="number of steps between checkpoints; one is also saved at the end"
    )
    keep_checkpoints: int = Field(2, ge=1, description="number of checkpoints to keep; averaging uses these")
    eval_steps: int = Field(0, ge=0, description="number of steps between measurements on dev; 0: only in evaluation")
    gleu_samples: int = Field(
        0, ge=0, description="sequences sampled per sentence to raise the expected GLEU (GNMT: 15); 0: none"
    )
    likelihood_weight: float = Field(
        0.017, ge=0, description="alpha: weight of the likelihood relative to expected GLEU"
    )


def unread_in_training(training: TrainingConfig) -> Iterator[tuple[str, str]]:
    """Yield each setting that this configuration does not read, with the reason."""
    if training.learning_rate is not None:
        yield "learning_rate_scale", "training.learning_rate is set, which is used instead"
    if not training.gleu_samples:
        yield "likelihood_weight", "training.gleu_samples = 0 uses only the likelihood"
    for setting, choice, table in (
        ("optimizer", training.optimizer, OPTIMIZERS),
        ("schedule", training.schedule, SCHEDULES),
    ):
        for name in dict.fromkeys(name for facts in table.values() for name in facts.reads):
            readers = [other for other, facts in table.items() if name in facts.reads]
            if choice not in readers:
                *first, last = readers
                would = f"{', '.join(first)} and {last} use it" if first else f"{last} uses it"
                yield name, f"training.{setting} = {choice} does not use it; {would}"


def momentum(training: TrainingConfig) -> float:
    """Return the momentum of the optimizer sgd or muon."""
    if training.momentum is None:
        return OPTIMIZERS[training.optimizer].momentum
    return training.momentum


def nesterov(training: TrainingConfig) -> bool:
    """Return whether the optimizer sgd or muon uses Nesterov's momentum."""
    if training.nesterov is None:
        return OPTIMIZERS[training.optimizer].nesterov
    return training.nesterov


def state_per_weight(training: TrainingConfig, hidden: float = 0.0) -> float:
    """Return how many numbers the optimizer stores per weight.

    hidden: the fraction of the weights that are in matrices of the layers. Only muon depends on it.
    """
    if training.optimizer == "adafactor":
        return 0.0  # one number per row and per column of a matrix: less than 0.01 per weight
    if training.optimizer == "sgd":
        return 1.0 if momentum(training) else 0.0
    return {"lion": 1.0, "muon": 2.0 - hidden}.get(training.optimizer, 2.0)
