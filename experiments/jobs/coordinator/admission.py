"""Decide which runs main memory can hold now, from each run's prediction and from the memory that is free.

Slots share memory with each other and with all other programs, so their equal shares (Slot.room_gb) describe only an
idle machine. A run starts if its prediction fits into the free memory, less the predicted growth of running runs.
GB are 1e9 bytes.

 - A run that will fit after our own runs end waits for them, and so do the runs behind it; otherwise smaller runs
   could delay it without end.
 - A run that waits for memory of other programs lets smaller runs pass.
 - If none of our runs is active, a prediction may be too high by TOLERANCE. A run that even then exceeds all memory is
   refused, because waiting would not help.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.devices import hardware
from experiments.jobs.devices.slots import Slot
from experiments.jobs.queue.job import Waiting

LOOK_EVERY_S = 5.0  # interval of checks while a run waits for memory
TOLERANCE = 1.25  # largest measured error of predictions (benchmarks/memory.py)


@dataclass
class Admitted:
    """The decision on runs that have slots. `waiting` and `refused` give the reason by run_id."""

    pairs: list[tuple[Waiting, Slot]] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Admission:
    """Admits runs by memory. `due`: runs wait for memory and it is time to check again."""

    def __init__(
        self,
        free_gb: Callable[[], float] | None = None,
        total_gb: Callable[[], float] | None = None,
        resident_gb: Callable[[RunningAttempt], float] | None = None,
    ) -> None:
        self._free_gb = free_gb or hardware.free_memory_gb
        self._total_gb = total_gb or hardware.memory_gb
        self._resident_gb = resident_gb or resident
        self._looked_at = 0.0
        self.waiting: dict[str, str] = {}

    @property
    def due(self) -> bool:
        """Whether a run waits for memory and LOOK_EVERY_S have passed since the last look."""
        return bool(self.waiting) and time.monotonic() - self._looked_at >= LOOK_EVERY_S

    def admit(self, pairs: Iterable[tuple[Waiting, Slot]], lives: Iterable[RunningAttempt]) -> Admitted:
        """Decide on runs with slots, in the order in which they are to start. `lives`: the running attempts."""
        pairs = list(pairs)
        self._looked_at = time.monotonic()
        if not any(_needs_gb(job, slot) for job, slot in pairs):
            self.waiting = {}
            return Admitted(pairs)
        running = [live for live in lives if live.slot.kind == "cpu"]
        held = [self._resident_gb(live) for live in running]
        growth = sum(max(0.0, _predicted_gb(live) - now) for live, now in zip(running, held, strict=True))
        found, free, total, ours = Admitted(), self._free_gb() - growth, self._total_gb(), sum(held) + growth
        queueing = False  # a run waits for ours to end: none may pass it
        for job, slot in pairs:
            need = _needs_gb(job, slot)
            least = need / TOLERANCE
            if not need:
                found.pairs.append((job, slot))
            elif least > total:
                found.refused[job.run_id] = _too_large(need, total)
            elif not queueing and (need <= free or (not ours and least <= free)):
                found.pairs.append((job, slot))
                free, ours = free - need, ours + need
            else:
                found.waiting[job.run_id] = _why(need, max(0.0, free), ours)
                queueing = queueing or least <= free + ours
        self.waiting = found.waiting
        return found


def resident(live: RunningAttempt) -> float:
    """GB of main memory held by an attempt's processes on this machine; 0 if they are not visible."""
    pid = live.handle.ref.get("pid") if live.handle is not None else None
    if not isinstance(pid, int):
        return 0.0
    try:
        child = psutil.Process(pid)
        family: Sequence[psutil.Process] = [child, *child.children(recursive=True)]
    except psutil.Error:
        return 0.0
    return sum(map(_resident_bytes, family)) / 1e9


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _needs_gb(job: Waiting, slot: Slot) -> float:
    """Predicted GB of main memory on this machine; 0: unknown, or on a cluster's machine."""
    return _at_most(job.memory_gb, slot) if slot.kind == "cpu" and slot.room_gb is not None else 0.0


def _predicted_gb(live: RunningAttempt) -> float:
    return _at_most(live.claimed.job.memory_gb, live.slot)


def _at_most(predicted_gb: float, slot: Slot) -> float:
    """The prediction for all processes of a run, within the limit of its slot."""
    return min(predicted_gb * slot.count, math.inf if slot.memory_gb is None else slot.memory_gb)


def _why(need: float, free: float, ours: float) -> str:
    held = f"; running runs take {ours:.1f} GB" if ours else ", the rest is held by other programs"
    return f"waits for memory: needs about {need:.1f} GB, {free:.1f} GB is free{held}"


def _too_large(need: float, total: float) -> str:
    return (
        f"The training is predicted to need {need:.1f} GB of main memory, but this machine or its container has "
        f"{total:.1f} GB. Use a smaller training.tokens_per_batch (below 4,096), a smaller model, or a machine with "
        "more memory. Nothing was started."
    )
