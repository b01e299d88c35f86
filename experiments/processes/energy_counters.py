"""Energy counters of this machine's processors (RAPL, in /sys) and of NVIDIA's GPUs (NVML, through nvidia-ml-py).

The counters may be missing: virtual machines have no RAPL, on many machines only root can read it, and nvidia-ml-py
is optional. If counters are missing, `open` returns None, and the energy is not estimated.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self

POWERCAP = Path("/sys/class/powercap")  # docs.kernel.org/power/powercap/powercap.html
# The zones to add up. Other zones count the same energy: core and uncore are parts of a package, psys contains the
# package, and intel-rapl-mmio repeats it.
_PACKAGE, _MEMORY = "package", "dram"


class CounterLostError(Exception):
    """Error if a counter can no longer be read. The use since the last reading is unknown."""


@dataclass
class _Zone:
    file: Path  # file with the counter in microjoules; the counter restarts from 0 after `most`
    most: int
    last: int

    def passed(self) -> int:
        """Return the microjoules since the last call. The counter must not have restarted more than once since then."""
        now, before = _number(self.file), self.last
        self.last = now
        return now - before if now >= before else now - before + self.most


class Rapl:
    """The energy of all processors and their memory, as the kernel counts it (Intel, and AMD since Zen)."""

    def __init__(self, zones: Sequence[_Zone]) -> None:
        self._zones = zones

    @classmethod
    def open(cls, root: Path = POWERCAP) -> Self | None:
        """Return the counters of this machine; None if there are none, or if one of them cannot be read."""
        zones = []
        try:
            for folder in sorted(root.glob("intel-rapl:*")):
                name, file = (folder / "name").read_text().strip(), folder / "energy_uj"
                if name.startswith(_PACKAGE) or name == _MEMORY:
                    zones.append(_Zone(file, _number(folder / "max_energy_range_uj"), _number(file)))
        except (OSError, ValueError):
            return None
        return cls(zones) if zones else None

    def joules(self) -> float:
        """Return the joules since the last call, or since `open`.

        Raises CounterLostError if a counter cannot be read.
        """
        try:
            return sum(zone.passed() for zone in self._zones) / 1e6
        except (OSError, ValueError) as error:
            raise CounterLostError from error


def _number(file: Path) -> int:
    return int(file.read_text())


class Nvml:
    """The energy of GPUs since their driver was loaded. GPUs have this counter since Volta."""

    def __init__(self, read: Sequence[Callable[[], int]]) -> None:  # millijoules
        self._read = read
        self._last = [each() for each in read]

    @classmethod
    def open(cls, environ: Mapping[str, str] = os.environ, count: int | None = None) -> Self | None:
        """Return the counters of the first `count` GPUs that CUDA shows to this process; without `count`, of all.

        The result is None if a GPU cannot be read or cannot be identified with certainty.
        """
        nvml, handles = gpus(environ)
        handles = handles[:count]
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                return cls([partial(nvml.nvmlDeviceGetTotalEnergyConsumption, handle) for handle in handles])
        return None

    def joules(self) -> float:
        """Return the joules since the last call, or since `open`.

        Raises CounterLostError if a counter cannot be read.
        """
        try:
            now = [each() for each in self._read]
        except Exception as error:  # NVMLError, which cannot be named here because pynvml is optional
            raise CounterLostError from error
        passed = [new - old for new, old in zip(now, self._last, strict=True)]
        if min(passed) < 0:  # the driver was loaded again
            raise CounterLostError
        self._last = now
        return sum(passed) / 1e3


def gpus(environ: Mapping[str, str]) -> tuple[Any, list[Any]]:
    """Return NVIDIA's library and its handles of the GPUs that CUDA shows.

    The result is (None, []) if a GPU cannot be identified with certainty.
    """
    nvml: Any = _library()
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlInit()
            shown = environ.get("CUDA_VISIBLE_DEVICES")
            names = map(str, range(nvml.nvmlDeviceGetCount())) if shown is None else map(str.strip, shown.split(","))
            handles = [_handle(nvml, name, environ) for name in names if name]
            if handles and None not in handles:
                return nvml, handles
    return None, []


def _library() -> ModuleType | None:
    try:
        import pynvml
    except ImportError:
        return None
    module: ModuleType = pynvml
    return module


def _handle(nvml: Any, name: str, environ: Mapping[str, str]) -> Any | None:
    """Return the handle of a GPU by CUDA's name for it.

    The result is None for a slice of a GPU (MIG), and if NVML may number the GPUs differently. NVML numbers GPUs by
    their position on the PCI bus. CUDA in children does the same (jobs/engines/engine.py), unless the user has set
    CUDA_DEVICE_ORDER to another order.
    """
    if name.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    same = environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID" or nvml.nvmlDeviceGetCount() == 1
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() and same else None
