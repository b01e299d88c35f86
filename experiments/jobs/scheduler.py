"""Which waiting job goes on which free slot: a pure function, so that it can be tested and simulated."""

from collections.abc import Iterable, Sequence

from experiments.jobs.job import Waiting
from experiments.jobs.slots import Slot


def place(waiting: Iterable[Waiting], free: Sequence[Slot], kinds: Iterable[str]) -> list[tuple[Waiting, Slot]]:
    """Pairs of job and slot; a job and a slot stand in at most one.

    Higher priority first, then the longest by predicted cost: the last to finish then are short ones, and the
    makespan stays within max(longest, total / slots) plus one short job. Ties keep the order of `waiting`. A run that
    has begun on one kind of device keeps to it, where the coordinator has any slot of that kind (`kinds`).
    """
    kinds = set(kinds)
    left = list(free)
    placed = []
    for job in sorted(waiting, key=lambda job: (-job.priority, -job.cost)):
        if not left:
            break
        bound = job.kind in kinds
        slot = next((slot for slot in left if not bound or slot.kind == job.kind), None)
        if slot is not None:
            left.remove(slot)
            placed.append((job, slot))
    return placed
