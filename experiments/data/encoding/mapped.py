"""Pieces on disk, read through a memory map whose pages are given back. Imports no torch."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Pieces = NDArray[np.unsignedinteger[Any]]
MAPPED_BYTES = 8 << 20  # most bytes of a file that a process keeps mapped …
FAULT_BYTES = 64 << 10  # … counting what Linux maps around each place that is read; 0.8 ms for 190 lines


class MappedPieces:
    """The pieces of a file. What was read is unmapped, so memory is constant; it stays in the page cache, which runs
    share.
    """

    def __init__(self, path: Path, dtype: np.dtype[Any]) -> None:
        self._map: mmap.mmap | None = None
        self.all: Pieces = np.zeros(0, dtype)
        self._touched = 0
        with path.open("rb") as file:
            if path.stat().st_size:  # an empty file cannot be mapped
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                self.all = np.frombuffer(self._map, dtype)

    def read(self, places: NDArray[np.int64], regions: int) -> NDArray[np.int64]:
        """The pieces at some places, which lie in about so many regions of the file."""
        found = self.all[places].astype(np.int64)
        self._touched += regions * FAULT_BYTES
        if self._map and len(self._map) > MAPPED_BYTES < self._touched:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return found
