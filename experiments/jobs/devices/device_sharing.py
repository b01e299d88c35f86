"""Whether several runs should share a device, and how many: decisions over measured speeds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile

from experiments.jobs.devices.slots import Slot

WORTH = 1.1  # what sharing must gain: below it, one run at a time ends sooner and needs less memory
ON_A_GPU = (1, 2, 4, 8)


def gain(alone: float, together: Sequence[float]) -> float:
    """How much faster runs that share a device are, all together, than one that has it to itself.

    Speeds are of the same work, in steps or tokens per second.
    """
    if alone <= 0:
        raise ValueError(f"a speed of {alone} was measured")
    return sum(together) / alone


def worth_sharing(alone: float, together: Sequence[float]) -> bool:
    return gain(alone, together) >= WORTH


def shares(slot: Slot, count: int) -> list[Slot]:
    """The same device for several runs: a share of its threads and of its memory each."""
    room = slot.room_gb and round(slot.room_gb / count, 2)
    return [
        replace(slot, name=f"{slot.name}/{n}", threads=max(1, slot.threads // count), room_gb=room,
                memory_gb=room if slot.kind == "cuda" else None)
        for n in range(count)
    ]  # fmt: skip


def counts(slot: Slot, needs_gb: float) -> Iterable[int]:
    """How many runs to try at once, rising from 1, each at least twice the one before.

    Of a processor's threads all get as many; and each run has the memory that it needs (0: not known).
    """
    if slot.kind == "cuda":
        steps = list(ON_A_GPU)
    else:
        steps = [1]
        for count in range(2, slot.threads + 1):
            if slot.threads % count == 0 and count >= 2 * steps[-1]:
                steps.append(count)
    return takewhile(lambda count: not slot.room_gb or needs_gb <= slot.room_gb / count, steps)


def most_worth(tried: Iterable[int], speeds: Callable[[int], Sequence[float]]) -> list[tuple[int, float]]:
    """(runs at once, the sum of their speeds), measured for rising counts while each is WORTH of the one before.

    The last pair is the one to take.
    """
    taken: list[tuple[int, float]] = []
    for count in tried:
        found = speeds(count)
        if taken and not worth_sharing(taken[-1][1], found):
            break
        taken.append((count, sum(found)))
    return taken
