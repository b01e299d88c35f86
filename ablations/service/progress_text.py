"""The progress of a store's queue as text: counts of runs by state, one line per running attempt."""

from collections.abc import Iterable, Mapping

from experiments.identity import seed_in_words
from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.coordinator.reporter import View
from experiments.jobs.queue.job import State
from experiments.messages import duration

NUMBERS = {"loss": "loss", "perplexity": "ppl", "dev_perplexity": "dev ppl"}


def counted(counts: Mapping[State, int]) -> list[str]:
    """Return the counts in words, such as "2 waiting" and "1 running", without states that no run has."""
    return [f"{counts[state]} {state.value}" for state in State if counts.get(state)]


def summary(counts: Iterable[str], preparing: str, left_s: float | None, more: str = "") -> str:
    """Return one line on the queue: its counts, the running preparation, the time left, and `more`."""
    return ", ".join(filter(None, [*counts, preparing, f"about {duration(left_s)} left" if left_s else "", more]))


def lines(view: View) -> list[str]:
    """Return one line per running attempt."""
    return [" ".join(filter(None, fields(live))) for live in view.running]


def fields(live: RunningAttempt) -> list[str]:
    """Return the name, the step, the newest numbers with the time left, and the slot of an attempt."""
    return [_name(live), _step(live), ", ".join(_numbers(live)), f"on {live.slot.name}"]


def _name(live: RunningAttempt) -> str:
    job = live.claimed.job
    return f"{job.members[0].row if job.members else job.run_id} ({seed_in_words(job.spec.seed)})"


def _step(live: RunningAttempt) -> str:
    total, reached = live.claimed.job.total_steps or live.progress.total, live.progress.step
    at = f"step {reached:,}/{total:,}" if reached is not None and total else ""
    return " ".join(filter(None, [live.progress.doing, at]))


def _numbers(live: RunningAttempt) -> list[str]:
    """Return the newest loss, perplexity and speed in words, and the time left.

    If a user's trainer logs neither loss nor perplexity, the first two numbers that it has logged are returned. Return
    [] if the run is not training.
    """
    values = live.progress.metrics
    if live.progress.doing != "training":
        return []
    shown = [f"{word} {values[key]:.4g}" for key, word in NUMBERS.items() if key in values]
    if not shown:
        shown = [f"{key} {value:.4g}" for key, value in list(values.items())[:2] if isinstance(value, int | float)]
    if "target_tokens_per_s" in values:
        shown.append(f"{values['target_tokens_per_s']:,.0f} tokens/s")
    left = live.progress.left_s(live.claimed.job.total_steps)
    return [*shown, *([f"{duration(left)} left"] if left else [])]
