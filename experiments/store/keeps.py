"""Checkpoints that a training must keep for later evaluations: demands on a run that are not part of its identity.

Studies that share a run make different demands: the average of its last 5 checkpoints, or the best of those measured
every 500 steps. The run is trained once and serves all of them. Imports no torch.
"""

from collections.abc import Iterable
from typing import NamedTuple

from experiments.config import EvaluationConfig, TrainingConfig

SPACED = "spaced"  # checkpoints at multiples of `every`, and the last step
BEST = "best"  # the best on dev among checkpoints at multiples of `every`
AT = "at"  # the checkpoint of step `every` alone, from which another run branches, with its optimizer state


class Keep(NamedTuple):
    """One demand. An evaluation or a branch uses `needed` of the `kept` checkpoints; the rest is for later ones."""

    what: str
    every: int  # steps
    kept: int = 1
    needed: int = 0

    def steps(self, last_step: int) -> list[int]:
        """Ascending steps of the checkpoints needed after `last_step`; [] where the steps are not known (the best)."""
        if self.what == AT:
            return [self.every] if self.needed and self.every <= last_step else []
        if self.what != SPACED or not self.needed:
            return []
        return spaced_steps(last_step, self.every, self.needed)


def spaced_steps(last_step: int, every: int, count: int) -> list[int]:
    """The newest `count` of: the multiples of `every`, and the last step. Ascending; fewer if there are fewer."""
    return [*range(every, last_step, every), *([last_step] if last_step else [])][-count:]


def at_steps(steps: Iterable[int]) -> tuple[Keep, ...]:
    """The demands of branches that begin after these steps."""
    return tuple(Keep(AT, step, 1, 1) for step in steps)


def keeps_of(training: TrainingConfig, evaluation: EvaluationConfig | None = None) -> tuple[Keep, ...]:
    """The demands of one configuration."""
    kind, _, number = evaluation.checkpoint.partition(":") if evaluation else ("last", "", "")
    averaged, best = int(number or 0) if kind == "average" else 0, kind == "best"
    spaced = Keep(SPACED, training.checkpoint_steps, max(training.keep_checkpoints, averaged), averaged)
    return (spaced, Keep(BEST, training.eval_steps, 1, int(best))) if training.eval_steps else (spaced,)


def union(*demands: Iterable[Keep]) -> tuple[Keep, ...]:
    """All demands; those with the same spacing are merged into one that serves both."""
    found: dict[tuple[str, int], Keep] = {}
    for keep in (Keep(*keep) for some in demands for keep in some):
        other = found.get((keep.what, keep.every), keep)
        kept, needed = max(keep.kept, other.kept), max(keep.needed, other.needed)
        found[keep.what, keep.every] = keep._replace(kept=kept, needed=needed)
    return tuple(found[key] for key in sorted(found))
