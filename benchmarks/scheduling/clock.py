"""Simulations with the real queue and the real scheduler. The simulated time jumps to the next end of a job."""

import heapq
import random
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scheduling.jobs import job
from experiments.jobs.coordinator.scheduler import place
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import Ending, Outcome, State
from experiments.jobs.queue.work_queue import WorkQueue


def makespans(folder: Path, tables: int) -> dict[str, float]:
    """Return the makespan divided by its lower bound, for tables of 20 to 200 runs with lengths as in Table 3.

    The results `wrong_*` are those with wrong predicted costs: the errors have a standard deviation of about a third.
    """
    chance = random.Random(1)
    found: dict[str, list[float]] = {"": [], "wrong_": []}
    for table in range(tables):
        slots = [Slot(f"cpu:{i}", "cpu") for i in range(chance.choice((2, 4, 8)))]
        lengths = [chance.lognormvariate(0, 0.8) for _ in range(chance.randint(20, 200))]
        wrong = [length * chance.lognormvariate(0, 1 / 3) for length in lengths]
        for name, costs in (("", lengths), ("wrong_", wrong)):
            work_queue = WorkQueue(folder / f"table-{name}{table}.db")
            work_queue.enqueue(job(n, cost) for n, cost in enumerate(costs))
            found[name].append(_work_off(work_queue, lengths, slots) / _bound(lengths, len(slots)))
            work_queue.close()
    return {f"{name}mean": statistics.mean(ratios) for name, ratios in found.items()} | {
        f"{name}worst": max(ratios) for name, ratios in found.items()
    }


def simulation(folder: Path, gpus: int, runs: int) -> dict[str, float]:
    """Simulate many GPUs and runs.

    `shortest_mean_run_s` is the mean length of a run below which GPUs would wait for the coordinator.
    """
    chance = random.Random(2)
    lengths = [chance.lognormvariate(0, 0.8) for _ in range(runs)]
    work_queue = WorkQueue(folder / "simulated.db")
    began = time.perf_counter()
    work_queue.enqueue(job(n, length) for n, length in enumerate(lengths))
    enqueued = time.perf_counter()
    slots = [Slot(f"cuda:{i}", "cuda", 1, str(i), None, 80.0) for i in range(gpus)]
    end = _work_off(work_queue, lengths, slots)
    seconds = time.perf_counter() - enqueued
    work_queue.close()
    return {
        "gpus": gpus,
        "runs": runs,
        "enqueue_s": enqueued - began,
        "runs_a_s": runs / seconds,
        "makespan_over_bound": end / _bound(lengths, gpus),
        "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        # The time for the coordinator's files is not included: see coordinator_ms_a_run of `overhead`.
        "shortest_mean_run_s": gpus * seconds / runs,
    }


def _work_off(work_queue: WorkQueue, lengths: Sequence[float], slots: Sequence[Slot]) -> float:
    """Simulate all jobs of the queue and return the makespan. Every claim and every end goes through the queue."""
    free, busy, now, ended = {slot.name: slot for slot in slots}, [], 0.0, 0
    done = Ending(State.FINISHED, Outcome.FINISHED)
    while ended < len(lengths):
        for waiting, (slot,) in place(work_queue.waiting(len(free) + 64), list(free.values()), slots):
            assert work_queue.claim(waiting.run_id, 1, slot.name, slot.kind)
            del free[slot.name]
            heapq.heappush(busy, (now + lengths[int(waiting.run_id, 16)], waiting.run_id, slot))
        now, run_id, slot = heapq.heappop(busy)
        work_queue.end(run_id, 1, done)
        free[slot.name], ended = slot, ended + 1
    return now


def _bound(lengths: Sequence[float], slots: int) -> float:
    return max(max(lengths), sum(lengths) / slots)
