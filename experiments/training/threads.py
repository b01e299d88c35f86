"""Choose the number of threads of a training on a CPU: all threads of its slot, or one thread if that is faster.

Several threads wait for each other in every operation. The operations of a small network in bf16 are so short that
this waiting can take more time than the threads save, especially on a busy machine. The first attempt of a run measures
the times and pins the number of threads for later attempts.
"""

import statistics
import time
from collections.abc import Callable

import torch

PASSES = 3  # number of timed passes, after one pass that builds kernels
SLOW = 2.0  # stop after two timed passes if several threads take more than SLOW times as long as one thread


def fastest_threads(
    most: int,
    compute: Callable[[], object],
    use: Callable[[int], object] = torch.set_num_threads,
    clock: Callable[[], float] = time.perf_counter,
) -> int:
    """Return `most` if `compute` is faster with `most` threads than with one, otherwise 1.

    The function also sets the number of torch's threads to the result.

    use, clock: functions that tests replace.
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
