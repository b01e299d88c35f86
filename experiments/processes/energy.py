"""Energy counters of this machine: of its processors (RAPL, in /sys) and of NVIDIA's GPUs (NVML, by nvidia-ml-py).

Neither is always there: virtual machines have no RAPL, many machines let only root read it, and nvidia-ml-py is
optional. Then `open` gives None, and nothing is estimated in place of a measurement.
"""

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Self

POWERCAP = Path("/sys/class/powercap")  # docs.kernel.org/power/powercap/powercap.html
# Zones to add up. The zones core and uncore are inside a package, psys contains it, intel-rapl-mmio repeats it.
_PACKAGE, _MEMORY = "package", "dram"


class CounterLostError(Exception):
    """A counter can no longer be read, so what was used since the last reading is unknown."""


@dataclass
class _Zone:
    file: Path  # microjoules, from 0 to `most`, and from 0 again
    most: int
    last: int

    def passed(self) -> int:
        """Microjoules since the last call; right if the counter has started again at most once."""
        now, before = _number(self.file), self.last
        self.last = now
        return now - before if now >= before else now - before + self.most


class Rapl:
    """The energy of all processors and their memory, as the kernel counts it (Intel, and AMD since Zen)."""

    def __init__(self, zones: Sequence[_Zone]) -> None:
        self._zones = zones

    @classmethod
    def open(cls, root: Path = POWERCAP) -> Self | None:
        """The counters of this machine; None if there are none, or if one of them cannot be read."""
        try:
            zones = [_zone(folder) for folder in sorted(root.glob("intel-rapl:*")) if _is_counted(folder)]
        except (OSError, ValueError):
            return None
        return cls(zones) if zones else None

    def joules(self) -> float:
        """Joules since the last call, or since `open`. Raises CounterLostError."""
        try:
            return sum(zone.passed() for zone in self._zones) / 1e6
        except (OSError, ValueError) as error:
            raise CounterLostError from error


def _is_counted(folder: Path) -> bool:
    name = (folder / "name").read_text().strip()
    return name.startswith(_PACKAGE) or name == _MEMORY


def _zone(folder: Path) -> _Zone:
    file = folder / "energy_uj"
    return _Zone(file, _number(folder / "max_energy_range_uj"), _number(file))


def _number(file: Path) -> int:
    return int(file.read_text())


class Nvml:
    """The energy of GPUs since their driver was loaded; Volta and later have the counter."""

    def __init__(self, read: Sequence[Callable[[], int]]) -> None:
        self._read = read
        self._last = [each() for each in read]

    @classmethod
    def open(cls, environ: Mapping[str, str] = os.environ) -> Self | None:
        """The GPUs that CUDA shows to this process; None if one of them cannot be read or is not surely found."""
        nvml, handles = gpus(environ)
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                return cls([_reader(nvml, handle) for handle in handles])
        return None

    def joules(self) -> float:
        """Joules since the last call, or since `open`. Raises CounterLostError."""
        try:
            now = [each() for each in self._read]
        except Exception as error:  # NVMLError, of a module that may not be there
            raise CounterLostError from error
        passed = [new - old for new, old in zip(now, self._last, strict=True)]
        if min(passed) < 0:  # the driver was loaded again
            raise CounterLostError
        self._last = now
        return sum(passed) / 1e3


def gpus(environ: Mapping[str, str]) -> tuple[Any, list[Any]]:
    """NVIDIA's library and its handles of the GPUs that CUDA shows; (None, []) if one of them is not surely found."""
    nvml: Any = _library()
    if nvml is not None:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlInit()
            handles = [_handle(nvml, name, environ) for name in _visible(nvml, environ)]
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


def _visible(nvml: Any, environ: Mapping[str, str]) -> list[str]:
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [str(index) for index in range(nvml.nvmlDeviceGetCount())]
    return [name.strip() for name in named.split(",") if name.strip()]


def _handle(nvml: Any, name: str, environ: Mapping[str, str]) -> Any | None:
    """A GPU by the name that CUDA has for it; None for a part of a GPU (MIG), and where numbers may be others.

    NVML numbers GPUs by their place on the bus, CUDA by its guess of the fastest unless told otherwise.
    """
    if name.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    same = environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or nvml.nvmlDeviceGetCount() == 1
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() and same else None


def _reader(nvml: Any, handle: Any) -> Callable[[], int]:
    return lambda: int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))  # millijoules
