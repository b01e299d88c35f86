"""Learning rate schedules. All are pure functions of the step, except plateau, which has a state."""

import math
from collections.abc import Callable
from typing import NamedTuple

from experiments.config.training import ScheduleName, TrainingConfig


def learning_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """Return the rate of equation (3), section 5.3: scale · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5).

    Steps count from 1. The rate rises linearly for `warmup_steps` steps. Then it falls with the inverse square root of
    the step.
    """
    return scale * min(1 / math.sqrt(step), step / math.pow(warmup_steps, 1.5)) / math.sqrt(d_model)


def make_schedule(settings: TrainingConfig, d_model: int) -> Callable[[int], float]:
    """Return a function from a step, counted from 1, to the learning rate. For plateau, it ignores the halvings.

    In the first `warmup_steps` steps, all schedules rise linearly to their highest rate η: η · step / warmup_steps. η
    is `settings.learning_rate`. If this setting is None, η is the highest rate of equation (3). All schedules therefore
    have the same highest rate by default.
    """
    warmup, peak, share = settings.warmup_steps, settings.learning_rate, SHARES[settings.schedule]
    if peak is None and settings.schedule == "inverse_sqrt":
        return lambda step: learning_rate(step, d_model, warmup, settings.learning_rate_scale)
    highest = learning_rate(warmup, d_model, warmup, settings.learning_rate_scale) if peak is None else peak
    return lambda step: highest * (step / warmup if step <= warmup else share(step, settings))


def _inverse_sqrt(step: int, settings: TrainingConfig) -> float:
    return math.sqrt(settings.warmup_steps / step)


def _one(step: int, settings: TrainingConfig) -> float:
    return 1.0


def _cosine(step: int, settings: TrainingConfig) -> float:
    """Return m + (1 − m) · (1 + cos πp) / 2 (Loshchilov and Hutter 2017, arXiv 1608.03983), without restarts."""
    done = _progress(step, settings.warmup_steps, settings)
    return settings.min_lr_ratio + (1 - settings.min_lr_ratio) * (1 + math.cos(math.pi * done)) / 2


def _linear(step: int, settings: TrainingConfig) -> float:
    return 1 - (1 - settings.min_lr_ratio) * _progress(step, settings.warmup_steps, settings)


def _warmup_stable_decay(step: int, settings: TrainingConfig) -> float:
    """Return 1 up to step stable_ratio · train_steps, then a linear decay.

    Hu 2024 (MiniCPM, arXiv 2404.06395) allows any decreasing decay, in the last tenth of the training.
    """
    stable = max(settings.warmup_steps, settings.stable_ratio * settings.train_steps)
    return 1 - (1 - settings.min_lr_ratio) * _progress(step, stable, settings)


def _progress(step: int, begin: float, settings: TrainingConfig) -> float:
    """Return the progress from 0 at step `begin` to 1 at the last step."""
    return (step - begin) / (settings.train_steps - begin) if step > begin else 0.0


# Schedule → function that returns the ratio of the rate to the highest rate, after the warm-up.
SHARES: dict[ScheduleName, Callable[[int, TrainingConfig], float]] = {
    "inverse_sqrt": _inverse_sqrt,
    "constant": _one,
    "cosine": _cosine,
    "linear": _linear,
    "warmup_stable_decay": _warmup_stable_decay,
    "plateau": _one,
}


class Plateau(NamedTuple):
    """The state of the schedule plateau, which halves the rate when the dev perplexity stops falling.

    The schedule equals torch.optim.lr_scheduler.ReduceLROnPlateau(factor=0.5, threshold=0). Every checkpoint of a
    training with this schedule includes the state.
    """

    best: float | None = None  # lowest perplexity so far
    waited: int = 0  # number of measurements since the lowest perplexity or the last halving
    halvings: int = 0

    def after(self, perplexity: float, patience: int) -> "Plateau":
        """Return the state after one more measurement. A perplexity that is not finite is not an improvement."""
        if math.isfinite(perplexity) and (self.best is None or perplexity < self.best):
            return Plateau(perplexity, 0, self.halvings)
        if self.waited < patience:
            return self._replace(waited=self.waited + 1)
        return Plateau(self.best, 0, self.halvings + 1)
