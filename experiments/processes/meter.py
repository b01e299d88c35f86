"""What this process uses: CPU time of itself and of the processes that it starts, and energy where it is counted.

Energy is counted for whole machines, and several runs may share one. A run is given the part of the processors' energy
that its CPU time is of all CPU time on the machine, so that the parts of all processes add up to the whole; and the
part of a GPU's energy that it leases of the GPU.
"""

import os
import resource
import threading
import time
from pathlib import Path

from experiments.processes.energy import CounterLostError, Nvml, Rapl
from experiments.processes.identity import cpu_below_s

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

    def lease(self, kind: str, share: float) -> None:
        """Say what the run leases: on GPUs ("cuda") their energy is counted too, times `share`."""
        with self._turn:
            self._share = share
            self._nvml = Nvml.open() if kind == "cuda" else None

    def used(self, fresh: bool) -> dict[str, float]:
        """Fields of an event: cpu_s, cpu_joules, gpu_joules; energy only where it is measured.

        fresh: read the energy and the CPU time of other processes now; else they are some seconds old.
        """
        with self._turn:
            if fresh:
                self._read()
            found = {"cpu_s": round(self._cpu_s(), 3)}
            if self._rapl is not None:
                found["cpu_joules"] = round(self._cpu_joules, 3)
            if self._nvml is not None:
                found["gpu_joules"] = round(self._gpu_joules, 3)
        return found

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
