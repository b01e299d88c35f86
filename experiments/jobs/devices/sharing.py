"""Decide from measured speeds how many runs share a device; predict when runs end."""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile

from experiments.client.ablations_task.process import CONTEXT_GB
from experiments.jobs.devices.slots import Slot

WORTH = 1.1  # smallest gain: below it, one run at a time ends earlier and needs less memory
ON_A_GPU = (1, 2, 4, 8)


def gain(alone: float, together: Sequence[float]) -> float:
    """Total speed of runs that share a device, relative to one run alone.

    Speeds are in steps or tokens per second of the same work. Raises ValueError for a speed of 0.
    """
    if alone <= 0:
        raise ValueError(f"a speed of {alone} was measured")
    return sum(together) / alone


def worth_sharing(alone: float, together: Sequence[float]) -> bool:
    """Whether sharing gains at least WORTH times."""
    return gain(alone, together) >= WORTH


def shares(slot: Slot, count: int) -> list[Slot]:
    """Split a device's slot into `count` slots, each with an equal share of threads and memory."""
    room = slot.room_gb and round(_room(slot, count), 2)
    return [
        replace(slot, name=f"{slot.name}/{n}", threads=max(1, slot.threads // count), room_gb=room,
                memory_gb=room if slot.kind == "cuda" or slot.memory_gb else None)
        for n in range(count)
    ]  # fmt: skip


def counts(slot: Slot, needs_gb: float) -> Iterable[int]:
    """Numbers of runs to try at once: rising from 1, each at least twice the one before.

    Threads of a processor are divided equally; each run gets the memory that it needs (`needs_gb`; 0: unknown).
    """
    if slot.kind == "cuda":
        steps = list(ON_A_GPU)
    else:
        steps = [1]
        for count in range(2, slot.threads + 1):
            if slot.threads % count == 0 and count >= 2 * steps[-1]:
                steps.append(count)
    return takewhile(lambda count: not slot.room_gb or needs_gb <= _room(slot, count), steps)


def _room(slot: Slot, count: int) -> float:
    """GB for each of `count` runs; on a GPU each has a CUDA context of its own beside."""
    context = CONTEXT_GB if slot.kind == "cuda" else 0.0
    return ((slot.room_gb or 0.0) + context) / count - context


def most_worth(tried: Iterable[int], speeds: Callable[[int], Sequence[float]]) -> list[tuple[int, float]]:
    """(runs at once, total speed) for rising counts, as long as each step up gains WORTH times.

    The last pair is the choice.
    """
    taken: list[tuple[int, float]] = []
    for count in tried:
        found = speeds(count)
        if taken and not worth_sharing(taken[-1][1], found):
            break
        taken.append((count, sum(found)))
    return taken


# --- Predict when runs end


DOUBLING = 1.8  # assumed speed-up of one run on twice the devices


def speedup(devices: int) -> float:
    """Speed of a run on `devices` relative to one: DOUBLING for each doubling."""
    doublings = devices.bit_length() - 1
    return float(DOUBLING**doublings)


def simulate(costs: Mapping[str, float], wide: Mapping[str, int], devices: int) -> dict[str, float]:
    """End time of each run, longest first; a run on several devices waits until they are free."""
    free_at = [0.0] * devices
    ends = {}
    for run_id in sorted(costs, key=lambda r: -costs[r]):
        mine = [heapq.heappop(free_at) for _ in range(wide[run_id])]
        ends[run_id] = max(mine) + costs[run_id] / speedup(wide[run_id])
        for _ in mine:
            heapq.heappush(free_at, ends[run_id])
    return ends


def makespan(lengths: Sequence[float], slots: int, free_at: Sequence[float] = ()) -> float:
    """End of all runs, longest first, each on the slot that is free first; in the unit of `lengths`.

    free_at: when each slot becomes free; 0 for all if empty.
    """
    free_at = sorted(free_at) or [0.0] * slots
    for length in sorted(lengths, reverse=True):
        heapq.heapreplace(free_at, free_at[0] + length)
    return max(free_at)
