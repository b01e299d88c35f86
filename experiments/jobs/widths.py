"""How many devices a long run should take (`devices = 0`, "auto"): a pure function over predicted costs.

A table whose longest row outlasts all the others leaves most devices idle at the end (`big` in Table 3). Giving that
row more devices shortens the whole, as long as the others fit on the rest meanwhile.
"""

import heapq
from collections.abc import Mapping, Sequence

DOUBLING = 1.8  # how much faster twice the devices train one run; measured on the machine it would be better


def speedup(devices: int) -> float:
    """Of `devices` over one: DOUBLING for each doubling."""
    doublings = devices.bit_length() - 1
    return float(DOUBLING**doublings)


def widths(costs: Mapping[str, float], devices: int) -> dict[str, int]:
    """run_id → devices, a power of two, for the runs that should take more than one.

    Each round doubles the run that ends last, if that ends the whole earlier.
    """
    found = dict.fromkeys(costs, 1)
    ends = simulate(costs, found, devices)
    while ends:
        last = max(ends, key=lambda run_id: (ends[run_id], run_id))
        if found[last] * 2 > devices:
            break
        wider = {**found, last: found[last] * 2}
        after = simulate(costs, wider, devices)
        if max(after.values()) >= ends[last]:
            break
        found, ends = wider, after
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
