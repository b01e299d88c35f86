"""What the optimizers and the schedules of the learning rate read, keep and need. Imports no torch.

Their formulas are in experiments/training/optimizers.py and schedules.py.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from experiments.config import TrainingConfig

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


def unread(training: "TrainingConfig") -> Iterator[tuple[str, str]]:
    """Names of the settings that this optimizer and this schedule do not read, each with what would."""
    if training.learning_rate is not None:
        yield "learning_rate_scale", "training.learning_rate is set, which is read in its place"
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
