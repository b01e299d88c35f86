"""Write checkpoints in a thread: a step waits only for a copy in memory, not for the disk."""

import threading
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from experiments.device import Device


class Saver:
    """Writes one checkpoint at a time in a thread. The next call raises its errors."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._copies: dict[str, Tensor] = {}  # reused: allocating costs more than copying

    def start(self, tensors: Mapping[str, Tensor], write: Callable[[Mapping[str, Tensor]], None]) -> None:
        """Copy `tensors` now, and let `write` save the copies. Waits for the previous save."""
        self.wait()
        copies = self._copy(tensors)
        self._thread = threading.Thread(target=self._run, args=(write, copies), name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of a finished save; does not wait."""
        if self._thread is not None and not self._thread.is_alive():
            self.wait()

    def wait(self) -> None:
        """Wait until the last save is on the disk; raise its error."""
        self.close()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def close(self) -> None:
        """Wait without raising errors, for use after another error."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self, write: Callable[[Mapping[str, Tensor]], None], copies: Mapping[str, Tensor]) -> None:
        try:
            write(copies)
        except BaseException as error:  # raised in the training's thread
            self._error = error

    def _copy(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for name, tensor in tensors.items():
            if name not in self._copies:
                self._copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
            self._copies[name].copy_(tensor, non_blocking=True)
        self._device.synchronize()
        return {name: self._copies[name] for name in tensors}
