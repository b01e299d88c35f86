"""The learning rate: equation (3) of section 5.3. A pure function of the step."""

import math


def learning_rate(step: int, d_model: int, warmup_steps: int, scale: float = 1.0) -> float:
    """scale · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5); steps count from 1.

    Rises linearly for `warmup_steps` steps, then falls with the inverse square root of the step. Raises ValueError for
    a step below 1.
    """
    if step < 1:
        raise ValueError(f"steps count from 1, not {step}")
    return scale * min(1 / math.sqrt(step), step / math.pow(warmup_steps, 1.5)) / math.sqrt(d_model)
