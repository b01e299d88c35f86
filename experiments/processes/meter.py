"""Resource use of this process: CPU time, including that of its child processes, and energy if it is counted.

Energy is counted for whole machines, and several runs may share a machine. A run's share of the processors' energy is
its share of the CPU time of all processes, so that the shares of all processes add up to the whole. A run's share of a
GPU's energy is the share of the GPU that it leases.
"""

import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self

from experiments.processes.process_identity import cpu_below_s

# --- Energy counters of this machine's processors (RAPL, in /sys) and of NVIDIA's GPUs (NVML, through nvidia-ml-py)
#
# The counters may be missing: virtual machines have no RAPL, on many machines only root can read it, and nvidia-ml-py
# is optional. Then `open` returns None, and the energy is not estimated.


POWERCAP = Path("/sys/class/powercap")  # docs.kernel.org/power/powercap/powercap.html
# The zones to add up. Other zones count the same energy: core and uncore are parts of a package, psys contains the
# package, and intel-rapl-mmio repeats it.
_PACKAGE, _MEMORY = "package", "dram"


class CounterLostError(Exception):
    """Error if a counter can no longer be read. The use since the last reading is unknown."""


@dataclass
class _Zone:
    file: Path  # microjoules; the counter restarts from 0 after `most`
    most: int
    last: int

    def passed(self) -> int:
        """Return the microjoules since the last call. The result is right if the counter has restarted at most once."""
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

    The result is None for a part of a GPU (MIG), and if NVML may number the GPUs differently. NVML numbers GPUs by
    their place on the bus. So does CUDA in children (jobs/engines/engine.py), unless the user has set CUDA_DEVICE_ORDER
    differently.
    """
    if name.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    same = environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID" or nvml.nvmlDeviceGetCount() == 1
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() and same else None


# --- The use of this process until now


EVERY_S = 30.0  # interval between readings; at 1,000 W the smallest RAPL counters restart after a minute
AGAIN_S = 0.1  # shortest time between two readings; the kernel counts CPU time in units of 0.01 s
STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)  # fields of the line "cpu": user, nice, system, irq, softirq; not idle, iowait, steal


class Meter:
    """Counts the use of this process from its creation on. `used` returns the totals.

    A thread also reads the counters, every EVERY_S.
    """

    def __init__(self, rapl: Rapl | None = None, stat: Path = STAT) -> None:
        """Start counting. rapl: the processors' counters; None: those of this machine.

        stat: CPU times of the whole machine.
        """
        self._turn = threading.Lock()
        self._stat = stat
        self._rapl = rapl or Rapl.open()
        self._nvml: Nvml | None = None
        self._share = 1.0
        self._below_s = _waited_s() + cpu_below_s()  # CPU time before the start does not count
        self._cpu_joules = self._gpu_joules = 0.0
        self._read_at = time.monotonic()
        self._own_s, self._busy_s = self._cpu_s(), self._busy()
        threading.Thread(target=self._keep_reading, daemon=True, name="meter").start()

    def lease(self, kind: str, share: float, count: int = 1) -> None:
        """Set the devices that the run leases.

        If it leases `count` GPUs ("cuda"), their energy is counted too, multiplied by `share`.
        """
        with self._turn:
            self._share = share
            self._nvml = Nvml.open(count=count) if kind == "cuda" else None

    def used(self, fresh: bool) -> dict[str, float]:
        """Return the fields of an event: cpu_s, cpu_joules, gpu_joules. Energy is included only if it is measured.

        fresh: read the energy and the CPU time of other processes now. Otherwise these values are up to EVERY_S old.
        """
        with self._turn:
            if fresh:
                self._read()
            fields = {"cpu_s": round(self._cpu_s(), 3)}
            if self._rapl is not None:
                fields["cpu_joules"] = round(self._cpu_joules, 3)
            if self._nvml is not None:
                fields["gpu_joules"] = round(self._gpu_joules, 3)
        return fields

    def _keep_reading(self) -> None:
        while True:
            time.sleep(EVERY_S)
            with self._turn:
                self._read()

    def _read(self) -> None:
        if time.monotonic() - self._read_at < AGAIN_S:
            return
        self._read_at = time.monotonic()
        self._below_s = max(self._below_s, _waited_s() + cpu_below_s())
        if self._rapl is not None:
            self._read_processors(self._rapl)
        if self._nvml is not None:
            try:
                self._gpu_joules += self._nvml.joules() * self._share
            except CounterLostError:
                self._nvml = None

    def _read_processors(self, rapl: Rapl) -> None:
        own, busy = self._cpu_s(), self._busy()
        if busy is None or self._busy_s is None:
            self._rapl = None
        elif busy > self._busy_s:  # without new CPU time, there is nothing to divide by
            try:
                self._cpu_joules += rapl.joules() * min(1.0, (own - self._own_s) / (busy - self._busy_s))
            except CounterLostError:
                self._rapl = None
            self._own_s, self._busy_s = own, busy

    def _cpu_s(self) -> float:
        """Return the CPU seconds of this process and of its descendants, including ended ones.

        The time of living descendants is that of the last reading.
        """
        return _of(resource.getrusage(resource.RUSAGE_SELF)) + max(self._below_s, _waited_s())

    def _busy(self) -> float | None:
        """Return the CPU seconds of all processes since the machine's start; None if the kernel does not report it."""
        try:
            times = self._stat.read_text().partition("\n")[0].split()[1:]
            return sum(int(times[place]) for place in _BUSY) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None


def _of(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _waited_s() -> float:
    """Return the CPU seconds of ended descendants."""
    return _of(resource.getrusage(resource.RUSAGE_CHILDREN))
