"""Freed memory goes back to the system where the heap keeps growing.

glibc keeps what a training frees (experiments/device.py says why), and gives blocks of ever new sizes new places
between the kernels that oneDNN keeps for as many shapes: a training of multi30k's model grew for thousands of steps
while what lives in its heap stayed the same. What is given back has to be taken again where it is needed, which costs
time: so it is given back only where the process has grown.
"""

import ctypes
import sys
from collections.abc import Callable
from pathlib import Path

EVERY = 25  # steps between looks: what was given back is in use again by then
GROWTH = 1.05


class Heap:
    """`look` once a step. On systems without glibc it does nothing."""

    def __init__(self, resident: Callable[[], int] | None = None, trim: Callable[[], object] | None = None) -> None:
        self._resident, self._trim = resident or _resident_pages, trim or _trimmer()
        self._level = 0  # resident some steps after the last trim; 0: not looked at since

    def look(self, step: int) -> None:
        """Give freed memory back if the process has grown by GROWTH since it last did so."""
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
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    return (lambda: libc.malloc_trim(0)) if libc is not None and hasattr(libc, "malloc_trim") else None
