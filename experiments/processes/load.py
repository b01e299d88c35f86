"""How busy this machine is: its processors, and the GPUs that CUDA shows to this process."""

import contextlib
import os
from collections.abc import Mapping

import psutil

from experiments.processes.energy import gpus


def processors_percent() -> float:
    """Load of all processors since the last call; 0 at the first."""
    return psutil.cpu_percent()


def gpus_percent(environ: Mapping[str, str] = os.environ) -> list[int]:
    """Load of each GPU; empty without NVIDIA's library (the extra `energy`) or where a GPU is not surely found."""
    nvml, handles = gpus(environ)
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):
            return [int(nvml.nvmlDeviceGetUtilizationRates(handle).gpu) for handle in handles]
    return []
