"""Return freed memory to the system if the heap keeps growing.

glibc keeps the memory that a training frees (experiments/device.py explains why). Batches of new shapes allocate blocks
of new sizes, which end up between the kernels that oneDNN caches for each shape. A training on multi30k grew for
thousands of steps, although the live part of its heap stayed constant. If memory is returned to the system, it must be
allocated again, which takes time. So this module returns memory only after the process has grown.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

EVERY = 25  # steps between checks; after this number of steps, returned memory is in use again
GROWTH = 1.05  # memory is returned after the process has grown by this factor


class MemoryTrim:
    """Returns freed memory to the system. Call `look` once per step. Without glibc, `look` does nothing."""

    def __init__(self, resident: Callable[[], int] | None = None, trim: Callable[[], object] | None = None) -> None:
        self._resident, self._trim = resident or _resident_pages, trim or _trimmer()
        self._level = 0  # number of resident pages, measured EVERY steps after the last trim; 0: not yet measured

    def look(self, step: int) -> None:
        """Return freed memory to the system if the process has grown by the factor GROWTH since the last return."""
        if self._trim is None or step % EVERY:
            return
        now = self._resident()
        if not self._level:
            self._level = now
        elif now > GROWTH * self._level:
            self._trim()
            self._level = 0


def _resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])


def _trimmer() -> Callable[[], object] | None:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "malloc_trim"):
        return None
    return lambda: libc.malloc_trim(0)
