"""Checks that a benchmark has measured something; a time for no work is an error, not a result."""

import math
import statistics
from collections.abc import Callable, Sequence

LEAST = 2  # repetitions


class NothingMeasuredError(Exception):
    """A benchmark has no result: no tokens, no pieces, a number that is not finite, or a single repetition."""


def positive(what: str, **numbers: float) -> None:
    """Raise NothingMeasuredError unless every number is finite and above zero. what: names the measurement."""
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
    """Run a benchmark. Returns its exit code, or 1 after its last line says that nothing was measured."""
    try:
        return main()
    except NothingMeasuredError as error:
        print(f"failed: {error}", flush=True)
        return 1
