"""Write checkpoints in a thread, so that a step waits only for a copy in memory and not for the disk."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from experiments.device import Device


class Saver:
    """A thread that writes one checkpoint at a time.

    If a save fails, the next call of `start`, `check` or `wait` raises the error.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._thread = ThreadPoolExecutor(1, "checkpoint")
        self._saving: Future[None] | None = None
        self._copies: dict[str, Tensor] = {}  # tensors for the copies; they are reused, because allocating is slow

    def start(self, tensors: Mapping[str, Tensor], write: Callable[[Mapping[str, Tensor]], None]) -> None:
        """Copy `tensors` now, and let `write` save the copies. Waits for the previous save."""
        self.wait()
        self._saving = self._thread.submit(write, self._copy(tensors))

    def check(self) -> None:
        """Raise the error of a save that has ended, without waiting."""
        if self._saving is not None and self._saving.done():
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is on disk, and raise its error."""
        if self._saving is not None:
            saving, self._saving = self._saving, None
            saving.result()

    def close(self) -> None:
        """Wait for the last save and end the thread, without raising errors."""
        self._thread.shutdown()

    def _copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, tensor in tensors.items():
            if name not in self._copies:
                self._copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._copies[name].copy_(tensor, non_blocking=True)
        self._device.synchronize()
        return {name: self._copies[name] for name in tensors}
