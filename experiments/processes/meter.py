"""Resource use of this process: CPU time, including that of its child processes, and energy if it is counted.

Energy is counted for whole machines, and several runs may share a machine. A run's share of the processors' energy is
its share of the CPU time of all processes, so that the shares of all processes add up to the whole. A run's share of a
GPU's energy is the share of the GPU that it leases.
"""

import os
import resource
import threading
import time
from pathlib import Path

from experiments.processes.energy_counters import CounterLostError, Nvml, Rapl
from experiments.processes.process_identity import cpu_below_s

EVERY_S = 30.0  # seconds between readings; at 1,000 W the smallest RAPL counters restart after a minute
AGAIN_S = 0.1  # shortest time in seconds between two readings; the kernel counts CPU time in units of 0.01 s
STAT = Path("/proc/stat")
_BUSY = (0, 1, 2, 5, 6)  # fields of the line "cpu": user, nice, system, irq, softirq; not idle, iowait, steal


class Meter:
    """Counts the resources that this process uses after the meter is created. `used` returns the totals.

    A thread reads the counters every EVERY_S, in addition to the readings of `used`.
    """

    def __init__(self, rapl: Rapl | None = None, stat: Path = STAT) -> None:
        """Start counting.

        rapl: the energy counters of the processors; None means the counters of this machine.
        stat: file with the CPU times of the whole machine.
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

        fresh: whether to read the energy and the CPU time of other processes now. If False, these values may be up to
            EVERY_S old.
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
