"""Whether several runs should share a device: a decision over measured speeds."""

from collections.abc import Sequence

WORTH = 1.1  # what sharing must gain: below it, one run at a time ends sooner and needs less memory


def gain(alone: float, together: Sequence[float]) -> float:
    """How much faster runs that share a device are, all together, than one that has it to itself.

    Speeds are of the same work, in steps or tokens per second.
    """
    if alone <= 0:
        raise ValueError(f"a speed of {alone} was measured")
    return sum(together) / alone


def worth_sharing(alone: float, together: Sequence[float]) -> bool:
    return gain(alone, together) >= WORTH
