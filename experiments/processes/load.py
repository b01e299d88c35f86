"""How busy this machine is: its processors, and the GPUs that CUDA shows to this process."""

import contextlib
import os
from collections.abc import Mapping

import psutil

from experiments.processes.energy import gpus


def processors_percent() -> float:
    """Load of all processors since the last call; 0 at the first."""
    return psutil.cpu_percent()


class GpuLoad:
    """The GPUs, found once: a failed import is not cached by Python, and a start of the driver's library takes time."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._nvml, self._handles = gpus(environ)

    def percent(self) -> list[int]:
        """Load of each GPU; empty without NVIDIA's library (the extra `energy`) or where a GPU is not surely found."""
        if self._nvml is not None:
            with contextlib.suppress(self._nvml.NVMLError):
                return [int(self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in self._handles]
        return []
