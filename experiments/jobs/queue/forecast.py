"""Predict when the queue will be empty, from the runs finished so far, or else from those that run."""

from experiments.jobs.devices.devices_per_run import makespan
from experiments.jobs.queue.queue import Queue


def left_s(queue: Queue, speed_now: float | None = None) -> float | None:
    """Seconds until the queue is empty, on as many slots as run now; None if unknown.

    At the speed of finished runs; before there are any, at `speed_now`, that of the running ones (cost per second).
    """
    speed, running, waiting = queue.speed() or speed_now, queue.running_left(), queue.waiting_costs()
    if not (running or waiting) or not (speed or not waiting):
        return None
    slots = max(1, len(running))
    lengths = [cost / speed for cost in waiting] if speed else []
    # running jobs are fixed to their slots; waiting ones follow, the longest first
    free_at = sorted(running + [0.0] * (slots - len(running)))
    return max(makespan(lengths, slots, free_at), max(running, default=0.0))
