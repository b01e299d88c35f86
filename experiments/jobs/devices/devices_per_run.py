"""Decide how many devices a long run takes (`--devices-per-run auto`): pure functions of predicted costs.

If a table's longest row takes longer than all others together, most devices are idle at the end (`big` in Table 3).
More devices for that row shorten the total, as long as the others fit on the rest meanwhile.
"""

import heapq
from collections.abc import Mapping, Sequence

DOUBLING = 1.8  # assumed speed-up of one run on twice the devices
GAIN = 0.05  # smallest relative gain in total time that justifies more devices for a run
ALIKE = 0.99  # runs of at least this fraction of the longest one get more devices together with it


def speedup(devices: int) -> float:
    """Speed of a run on `devices` relative to one: DOUBLING for each doubling."""
    doublings = devices.bit_length() - 1
    return float(DOUBLING**doublings)


def devices_per_run(costs: Mapping[str, float], devices: int, known: Mapping[str, int] | None = None) -> dict[str, int]:
    """run_id → devices (a power of two) for runs that should get more than one. Runs in `known` keep their number.

    Each round doubles the devices of the longest runs (the seeds of a row) while this shortens the total by GAIN.
    """
    known = {run_id: min(width, devices) for run_id, width in (known or {}).items()}
    found = {run_id: known.get(run_id, 1) for run_id in costs}
    end = max(simulate(costs, found, devices).values(), default=0.0)
    while True:
        lengths = {run_id: cost / speedup(found[run_id]) for run_id, cost in costs.items() if run_id not in known}
        longest = max(lengths.values(), default=0.0)
        doubled = {run_id: found[run_id] * 2 for run_id, length in lengths.items() if length >= ALIKE * longest}
        if not longest or max(doubled.values()) > devices:  # costs may be unknown
            break
        after = max(simulate(costs, {**found, **doubled}, devices).values())
        if after > end * (1 - GAIN):
            break
        found, end = {**found, **doubled}, after
    return {run_id: count for run_id, count in found.items() if count > 1}


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
