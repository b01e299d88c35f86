"""Number of threads of a training on a processor: those of its slot, unless one alone is as fast.

Several threads wait for each other in every operation. The operations of a small network in bf16 are so short that this
can take longer than it saves, more so beside other work. The first attempt measures and pins.
"""

import statistics
import time
from collections.abc import Callable

import torch

PASSES = 3  # that are timed, after one that builds kernels
SLOW = 2.0  # beside other work several threads may take many times as long: then two timed passes are enough


def fastest_threads(
    most: int,
    compute: Callable[[], object],
    use: Callable[[int], object] = torch.set_num_threads,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return `most` if `compute` takes less time with so many threads than with one, else 1; torch then uses them.

    use, clock: for tests.
    """
    if most == 1:
        return 1
    seconds: dict[int, list[float]] = {1: [], most: []}
    for number in range(1 + PASSES):
        for threads, times in seconds.items():
            use(threads)
            began = clock()
            compute()
            times.append(clock() - began)
        if number == 2 and min(seconds[most][1:]) > SLOW * max(seconds[1][1:]):
            break
    one, several = (statistics.median(times[1:]) for times in seconds.values())
    chosen = most if several < one else 1
    use(chosen)
    return chosen
