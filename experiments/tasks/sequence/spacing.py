"""Which checkpoints an evaluation's settings speak of. Imports no torch."""

from experiments.tasks.base import EvaluationSpec


def spacing_of(evaluation: EvaluationSpec) -> int:
    """The steps between the checkpoints that are averaged, or between the measurements that the best is chosen by."""
    best = evaluation.settings["checkpoint"] == "best"
    return int(evaluation.settings.get("eval_steps" if best else "checkpoint_steps", 0))
