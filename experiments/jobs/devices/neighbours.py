"""Leave GPUs alone while other users compute on them.

nvidia-smi is consulted only for GPUs without a run of ours: in a container its process ids differ from those visible
here, so our own processes could not be distinguished from others.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence

from experiments.jobs.devices.hardware import gpus_in_use
from experiments.jobs.devices.slots import Slot

ASK_EVERY_S = 10.0


class Neighbours:
    """`left_alone` gives the slots that must not be used now, with reasons. GPUs named by the user are always used."""

    def __init__(self, ask: Callable[[], Mapping[str, str]] = gpus_in_use) -> None:
        self._ask = ask
        self._asked_at: float | None = None
        self._in_use: Mapping[str, str] = {}

    @property
    def due(self) -> bool:
        """Whether it is time to consult nvidia-smi again."""
        return self._asked_at is None or time.monotonic() - self._asked_at >= ASK_EVERY_S

    def left_alone(self, slots: Sequence[Slot], leased: Collection[str]) -> dict[str, str]:
        """Names of free slots whose GPU others use → description of their processes."""
        ours = {slot.unit for slot in slots if slot.name in leased}
        free = [slot for slot in slots if slot.kind == "cuda" and not slot.named and slot.unit not in ours]
        if not free:
            return {}
        if self.due:
            self._in_use, self._asked_at = self._ask(), time.monotonic()
        return {slot.name: self._in_use[slot.device] for slot in free if slot.device and slot.device in self._in_use}
