"""Resource use of this process: CPU time, with that of processes that it starts, and energy where it is counted.

Energy is counted for whole machines, and several runs may share one. A run is given the part of the processors' energy
that its CPU time is of all CPU time on the machine, so that the parts of all processes add up to the whole; and the
part of a GPU's energy that it leases of the GPU.
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

# --- Energy counters of this machine: of its processors (RAPL, in /sys) and of NVIDIA's GPUs (NVML, by nvidia-ml-py)
# Neither is always there: virtual machines have no RAPL, many machines let only root read it, and nvidia-ml-py is
# optional. Then `open` gives None, and nothing is estimated in place of a measurement.


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
        """Joules since the last call, or since `open`. Raises CounterLostError."""
        try:
            return sum(zone.passed() for zone in self._zones) / 1e6
        except (OSError, ValueError) as error:
            raise CounterLostError from error


def _number(file: Path) -> int:
    return int(file.read_text())


class Nvml:
    """The energy of GPUs since their driver was loaded; Volta and later have the counter."""

    def __init__(self, read: Sequence[Callable[[], int]]) -> None:  # millijoules
        self._read = read
        self._last = [each() for each in read]

    @classmethod
    def open(cls, environ: Mapping[str, str] = os.environ, count: int | None = None) -> Self | None:
        """The first `count` GPUs that CUDA shows to this process, which a run of so many uses; None: all of them.

        Gives None if one of them cannot be read or is not surely found.
        """
        nvml, handles = gpus(environ)
        handles = handles[:count]
        if nvml is not None:
            with contextlib.suppress(nvml.NVMLError):
                return cls([partial(nvml.nvmlDeviceGetTotalEnergyConsumption, handle) for handle in handles])
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
    """A GPU by the name that CUDA has for it; None for a part of a GPU (MIG), and where numbers may be others.

    NVML numbers GPUs by their place on the bus, and so does CUDA in children (jobs/engines/engine.py), unless the user
    has chosen its guess of the fastest.
    """
    if name.startswith("GPU-"):
        return nvml.nvmlDeviceGetHandleByUUID(name)
    same = environ.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID" or nvml.nvmlDeviceGetCount() == 1
    return nvml.nvmlDeviceGetHandleByIndex(int(name)) if name.isdecimal() and same else None


# --- What this process used, at any moment


EVERY_S = 30.0  # RAPL's counters start again from 0; at 1,000 W the smallest of them after a minute
AGAIN_S = 0.1  # a new reading after so long; the kernel counts CPU time by 0.01 s
STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)  # of the line "cpu": user, nice, system, irq, softirq; not idle, iowait, steal


class Meter:
    """Counts from its creation on, read by a thread of its own too; `used` gives the totals."""

    def __init__(self, rapl: Rapl | None = None, stat: Path = STAT) -> None:
        """rapl: the processors' counters; those of this machine if None. stat: the kernel's times of all processors."""
        self._turn = threading.Lock()
        self._stat = stat
        self._rapl = rapl or Rapl.open()
        self._nvml: Nvml | None = None
        self._share = 1.0
        self._below_s = _waited_s() + cpu_below_s()  # else it would count in the first reading
        self._cpu_joules = self._gpu_joules = 0.0
        self._read_at = time.monotonic()
        self._own_s, self._busy_s = self._cpu_s(), self._busy()
        threading.Thread(target=self._keep_reading, daemon=True, name="meter").start()

    def lease(self, kind: str, share: float, count: int = 1) -> None:
        """Say what the run leases: on `count` GPUs ("cuda") their energy is counted too, times `share`."""
        with self._turn:
            self._share = share
            self._nvml = Nvml.open(count=count) if kind == "cuda" else None

    def used(self, fresh: bool) -> dict[str, float]:
        """Fields of an event: cpu_s, cpu_joules, gpu_joules; energy only where it is measured.

        fresh: read the energy and the CPU time of other processes now; else they are some seconds old.
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
        elif busy > self._busy_s:  # else nothing is divided yet
            try:
                self._cpu_joules += rapl.joules() * min(1.0, (own - self._own_s) / (busy - self._busy_s))
            except CounterLostError:
                self._rapl = None
            self._own_s, self._busy_s = own, busy

    def _cpu_s(self) -> float:
        """CPU seconds of this process, and of those below it, which have ended or lived at the last reading."""
        return _of(resource.getrusage(resource.RUSAGE_SELF)) + max(self._below_s, _waited_s())

    def _busy(self) -> float | None:
        """CPU seconds of all processes of the machine since its start; None if the kernel does not tell."""
        try:
            times = self._stat.read_text().partition("\n")[0].split()[1:]
            return sum(int(times[place]) for place in _BUSY) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None


def _of(usage: resource.struct_rusage) -> float:
    return usage.ru_utime + usage.ru_stime


def _waited_s() -> float:
    """CPU seconds of processes below this one that have ended."""
    return _of(resource.getrusage(resource.RUSAGE_CHILDREN))
