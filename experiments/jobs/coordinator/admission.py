"""Admit runs to main memory, based on each run's prediction and on the free memory.

All slots and all other programs of a machine share its memory. An equal share of the memory (Slot.room_gb) is therefore
available to each slot only on an idle machine. A run starts if its predicted memory is at most the free memory minus
the predicted growth of the running runs. 1 GB is 1e9 bytes.

 - If a run will fit as soon as runs of this coordinator end, it waits for their end. The runs after it in the order
   wait too. Otherwise, smaller runs could delay it forever.
 - If a run waits for memory that other programs use, smaller runs after it may start.
 - If no run of this coordinator is active, a run may start if its prediction is at most TOLERANCE times the free
   memory. A run whose prediction exceeds TOLERANCE times all memory is refused, because waiting would not help.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import psutil

from experiments.jobs.attempts.attempt import RunningAttempt
from experiments.jobs.devices import hardware
from experiments.jobs.devices.slots import TOLERANCE, Slot
from experiments.jobs.queue.job import Waiting

LOOK_EVERY_S = 5.0  # seconds between checks while a run waits for memory


@dataclass
class Admitted:
    """The decision on runs that have slots. `waiting` and `refused` map run_ids to reasons."""

    pairs: list[tuple[Waiting, Slot]] = field(default_factory=list)
    waiting: dict[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


class Admission:
    """Admits runs to main memory."""

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
        """Whether a run waits for memory and LOOK_EVERY_S have passed since the last check."""
        return bool(self.waiting) and time.monotonic() - self._looked_at >= LOOK_EVERY_S

    def admit(self, pairs: Iterable[tuple[Waiting, Slot]], lives: Iterable[RunningAttempt]) -> Admitted:
        """Decide on runs with slots, in the order in which they are to start. lives: the running attempts."""
        pairs = list(pairs)
        self._looked_at = time.monotonic()
        if not any(_needs_gb(job, slot) for job, slot in pairs):
            self.waiting = {}
            return Admitted(pairs)
        running = [live for live in lives if live.slot.kind == "cpu"]
        held = [self._resident_gb(live) for live in running]
        grown = (_at_most(live.claimed.job.memory_gb, live.slot) for live in running)
        growth = sum(max(0.0, predicted - now) for predicted, now in zip(grown, held, strict=True))
        found, free, total, ours = Admitted(), self._free_gb() - growth, self._total_gb(), sum(held) + growth
        queueing = False  # whether a run waits for the end of running runs; if so, no later run may start before it
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
    """Return the GB of main memory that an attempt's processes use on this machine; 0 if they are not visible."""
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
    """Return the predicted GB of this machine's main memory for a job.

    Return 0 if the prediction is unknown, if the slot is a GPU, or if a cluster runs the job.
    """
    return _at_most(job.memory_gb, slot) if slot.kind == "cpu" and slot.room_gb is not None else 0.0


def _at_most(predicted_gb: float, slot: Slot) -> float:
    """Return the prediction for all processes of a run, limited by the memory limit of its slot."""
    return min(predicted_gb * slot.count, math.inf if slot.memory_gb is None else slot.memory_gb)


def _why(need: float, free: float, ours: float) -> str:
    held = f"; running runs use {ours:.1f} GB" if ours else "; other programs use the rest"
    return f"waits for memory: needs about {need:.1f} GB, {free:.1f} GB are free{held}"


def _too_large(need: float, total: float) -> str:
    return (
        f"The run was not started, because training is predicted to need {need:.1f} GB of main memory, but this "
        f"machine or its container has {total:.1f} GB. Use a smaller training.tokens_per_batch (below 4,096), a "
        "smaller model, or a machine with more memory."
    )
