"""Checks that a benchmark has measured something. A time without work is an error, not a result."""

import math
import statistics
from collections.abc import Callable, Sequence

LEAST = 2  # minimum number of repetitions


class NothingMeasuredError(Exception):
    """Raised if a benchmark has no result: no tokens, no pieces, a number that is not finite, too few repetitions."""


def positive(what: str, **numbers: float) -> None:
    """Raise NothingMeasuredError unless every number is finite and positive. what: name of the measurement."""
    for name, number in numbers.items():
        if not (math.isfinite(number) and number > 0):
            raise NothingMeasuredError(f"{what}: {name} is {number}, so nothing was measured")


def median(what: str, repetitions: Sequence[float], least: int = LEAST) -> float:
    """Return the median. Raises NothingMeasuredError for fewer than `least` repetitions, or if one is not positive."""
    if len(repetitions) < least:
        raise NothingMeasuredError(f"{what}: {len(repetitions)} of at least {least} repetitions were measured")
    for repetition in repetitions:
        positive(what, repetition=repetition)
    return float(statistics.median(repetitions))


def exit_code(main: Callable[[], int]) -> int:
    """Run a benchmark and return its exit code. If nothing was measured, print the reason and return 1."""
    try:
        return main()
    except NothingMeasuredError as error:
        print(f"failed: {error}", flush=True)
        return 1
