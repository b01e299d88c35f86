"""Predict when the queue will be empty.

The prediction uses the speed of finished runs. If no run has finished, it uses the speed of the running runs.
"""

import heapq
from collections.abc import Iterable, Sequence

from experiments.jobs.queue.queue import Queue

DOUBLING = 1.8  # assumed speed-up of a run on twice as many devices


def left_s(queue: Queue, speed_now: float | None = None) -> float | None:
    """Return the predicted seconds until the queue is empty; None if unknown.

    The prediction assumes that the number of slots in use stays the same. A run without a predicted cost is assumed to
    take the mean time of the finished runs without a predicted cost.

    speed_now: speed of the running jobs (cost per second), which is used if no run has finished.
    """
    speed, running, waiting = queue.speed() or speed_now, queue.running_left(), queue.waiting_costs()
    usual = queue.usual_s() if 0.0 in waiting else None
    known = all(speed if cost else usual for cost in waiting)
    if not (running or waiting) or not known:
        return None
    slots = max(1, len(running))
    lengths = [(cost / speed if cost and speed else usual or 0.0, 1) for cost in waiting]
    return makespan(lengths, running + [0.0] * (slots - len(running)))  # running jobs stay on their slots


def makespan(runs: Iterable[tuple[float, int]], free_at: Sequence[float]) -> float:
    """Return the time when all runs have ended, if the longest run starts first.

    Each run takes the devices that become free first. On twice as many devices, a run is assumed to be DOUBLING times
    as fast.

    runs: (length on one device, number of devices).
    free_at: time when each device becomes free.
    """
    free = sorted(free_at)
    for length, devices in sorted(runs, reverse=True):
        mine = [heapq.heappop(free) for _ in range(devices)]
        end = max(mine) + length / DOUBLING ** (devices.bit_length() - 1)
        for _ in mine:
            heapq.heappush(free, end)
    return max(free)
