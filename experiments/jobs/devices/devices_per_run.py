"""How many devices a long run should take (`--devices-per-run auto`): a pure function over predicted costs.

A table whose longest row outlasts all the others leaves most devices idle at the end (`big` in Table 3). Giving that
row more devices shortens the whole, as long as the others fit on the rest meanwhile.
"""

import heapq
from collections.abc import Mapping, Sequence

DOUBLING = 1.8  # how much faster twice the devices train one run; measured on the machine it would be better
GAIN = 0.05  # more devices for one run cost arithmetic: the whole must end that much earlier
ALIKE = 0.99  # runs of nearly the longest's length are widened with it


def speedup(devices: int) -> float:
    """Of `devices` over one: DOUBLING for each doubling."""
    doublings = devices.bit_length() - 1
    return float(DOUBLING**doublings)


def devices_per_run(costs: Mapping[str, float], devices: int, known: Mapping[str, int] | None = None) -> dict[str, int]:
    """run_id → devices, a power of two, for the runs that should take more than one. `known` ones keep theirs.

    Each round doubles the longest run, or the longest (the seeds of a row), as long as the whole ends GAIN earlier.
    """
    known = {run_id: min(width, devices) for run_id, width in (known or {}).items()}
    found = {run_id: known.get(run_id, 1) for run_id in costs}
    end = max(simulate(costs, found, devices).values(), default=0.0)
    while True:
        lengths = {run_id: cost / speedup(found[run_id]) for run_id, cost in costs.items() if run_id not in known}
        longest = max(lengths.values(), default=0.0)
        doubled = {run_id: found[run_id] * 2 for run_id, length in lengths.items() if length >= ALIKE * longest}
        if not longest or max(doubled.values()) > devices:  # the cost may be unknown
            break
        after = max(simulate(costs, {**found, **doubled}, devices).values())
        if after > end * (1 - GAIN):
            break
        found, end = {**found, **doubled}, after
    return {run_id: count for run_id, count in found.items() if count > 1}


def simulate(costs: Mapping[str, float], wide: Mapping[str, int], devices: int) -> dict[str, float]:
    """When each run ends, the longest started first; a run that needs several devices waits until they are free."""
    free_at = [0.0] * devices
    ends = {}
    for run_id in sorted(costs, key=lambda r: -costs[r]):
        mine = [heapq.heappop(free_at) for _ in range(wide[run_id])]
        ends[run_id] = max(mine) + costs[run_id] / speedup(wide[run_id])
        for _ in mine:
            heapq.heappush(free_at, ends[run_id])
    return ends


def makespan(lengths: Sequence[float], slots: int, free_at: Sequence[float] = ()) -> float:
    """The end of all, the longest first, each on the slot that is free first; in the unit of `lengths`.

    `free_at` says when each slot is free; at once if left out.
    """
    free_at = sorted(free_at) or [0.0] * slots
    for length in sorted(lengths, reverse=True):
        heapq.heapreplace(free_at, free_at[0] + length)
    return max(free_at)
