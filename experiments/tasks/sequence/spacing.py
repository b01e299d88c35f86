"""The checkpoints that an evaluation's settings refer to. Imports no torch."""

from experiments.tasks.base import EvaluationSpec


def spacing_of(evaluation: EvaluationSpec) -> int:
    """The steps between the checkpoints of an average, or between the measurements for the best checkpoint."""
    best = evaluation.settings["checkpoint"] == "best"
    return int(evaluation.settings.get("eval_steps" if best else "checkpoint_steps", 0))
