"""Leave GPUs alone while other users compute on them.

Only GPUs without a run of this program are checked. In a container, the process ids that nvidia-smi prints differ from
those visible to this program, so the program cannot distinguish its processes from others. nvidia-smi is called in a
thread, because it hangs if the driver hangs.
"""

import math
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import TypeVar

from experiments.jobs.devices.hardware import gpu_used_gb, gpus_in_use
from experiments.jobs.devices.slots import Slot

Answer = TypeVar("Answer")
ASK_EVERY_S = 10.0
WAIT_S = 1.0  # longest wait for nvidia-smi in seconds; without an answer, only GPUs that --devices names are used


class GpuOccupancy:
    """Finds the GPUs that other users compute on. It does not check GPUs that the user has named in --devices."""

    def __init__(self, ask: Callable[[], Mapping[str, str]] = gpus_in_use) -> None:
        self._ask = ask
        self._asked_at = -math.inf
        self._asked: Future[Mapping[str, str]] | None = None  # the call that is running
        self._in_use: Mapping[str, str] | None = None  # None: unknown

    @property
    def due(self) -> bool:
        """Whether nvidia-smi has answered, or it is time to call it again."""
        return self._asked.done() if self._asked else time.monotonic() - self._asked_at >= ASK_EVERY_S

    def left_alone(self, slots: Sequence[Slot], leased: Collection[str], wait_s: float = WAIT_S) -> dict[str, str]:
        """Return the free slots that must not be used: name of a slot → reason.

        The reason describes the processes of other users on the GPU, or says that nvidia-smi does not answer.
        """
        ours = {slot.unit: slot.device for slot in slots if slot.name in leased}
        free = [slot for slot in slots if slot.kind == "cuda" and not slot.named and slot.unit not in ours]
        if not free:
            return {}
        if self.due and not self._asked:
            self._asked = _ask_aside(self._ask)
            futures.wait([self._asked], wait_s)
        if self._asked:
            known = self._asked.done() and not self._asked.exception()
            self._in_use = self._asked.result() if known else None
            if self._asked.done():
                self._asked, self._asked_at = None, time.monotonic()
        if self._in_use is None:
            return {slot.name: "nvidia-smi does not answer" for slot in free if slot.device}
        self._in_use = {device: why for device, why in self._in_use.items() if device not in ours.values()}
        return {slot.name: self._in_use[slot.device] for slot in free if slot.device and slot.device in self._in_use}


SAMPLE_S = 5.0


class GpuMemory:
    """Samples the memory in use on the GPUs. The coordinator never waits for a sample."""

    def __init__(self, ask: Callable[[], Mapping[str, float]] = gpu_used_gb) -> None:
        self._ask = ask
        self._asked_at = -math.inf
        self._asked: Future[Mapping[str, float]] | None = None  # the call that is running

    def sample(self) -> Mapping[str, float]:
        """Return the GB in use on each GPU, by UUID and by index; {} if nvidia-smi has given no new answer.

        nvidia-smi is called about every SAMPLE_S.
        """
        now = time.monotonic()
        if self._asked is None and now - self._asked_at >= SAMPLE_S:
            self._asked, self._asked_at = _ask_aside(self._ask), now
        if self._asked is None or not self._asked.done():
            return {}
        answered, self._asked = self._asked, None
        return {} if answered.exception() else answered.result()


def _ask_aside(ask: Callable[[], Answer]) -> "Future[Answer]":
    """Call nvidia-smi in a new thread."""
    asked: Future[Answer] = Future()
    threading.Thread(target=_answer, args=(ask, asked), daemon=True, name="nvidia-smi").start()
    return asked


def _answer(ask: Callable[[], Answer], asked: "Future[Answer]") -> None:
    try:
        asked.set_result(ask())
    except Exception as error:
        asked.set_exception(error)
