"""Write and read one side of an encoded set on disk. Reading uses a memory map. Imports no torch.

SIDE.pieces (uint16 or uint32) contains the pieces of all rows without separators, and one EOS at the end. SIDE.offsets
(int64) contains the index of each row's first piece, and the end of the last row. For sentence pairs, a row is a
sentence without special symbols. For running text, a row is a document with EOS before it. An evaluated set of running
text also has lines.npy (int64): for each line, the index of its first piece, its bytes and its words.
"""

import copy
import itertools
import mmap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.encoding.tokenizer import EOS_ID, UNK_ID
from experiments.errors import Damaged

MAPPED_BYTES = 8 << 20  # maximum number of bytes of a file that stay mapped
FAULT_BYTES = 64 << 10  # bytes that Linux maps around each position that is read

Places = NDArray[np.int64]
Pieces = NDArray[np.unsignedinteger[Any]]


def piece_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smaller of uint16 and uint32 that can represent all pieces of a vocabulary."""
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


class SideWriter:
    """A writer that appends encoded lines to one side of a folder."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype[Any]) -> None:
        self._dtype = dtype
        self._pieces, self._offsets = ((folder / f"{side}.{what}").open("wb") for what in ("pieces", "offsets"))
        self.pieces = self.unknown = 0

    def add(self, lines: Sequence[Sequence[int]], starts: NDArray[np.bool_] | None = None) -> Places:
        """Write a chunk of lines and return the index of the first piece of each line.

        starts: for each line, whether it begins a row; None if every line begins a row.
        """
        lengths = np.fromiter(map(len, lines), np.int64, len(lines))
        pieces = np.fromiter(itertools.chain.from_iterable(lines), self._dtype, int(lengths.sum()))
        places: Places = self.pieces + np.cumsum(lengths) - lengths
        self._offsets.write((places if starts is None else places[starts]).tobytes())
        self._pieces.write(pieces.tobytes())
        self.pieces += len(pieces)
        self.unknown += int(np.count_nonzero(pieces == UNK_ID))
        return places

    def close(self) -> None:
        """Write the end of the last row and the final EOS, and close the files."""
        self._offsets.write(np.array([self.pieces], np.int64).tobytes())
        self._pieces.write(np.array([EOS_ID], self._dtype).tobytes())
        for file in (self._pieces, self._offsets):
            file.close()


class Side:
    """The rows of one side, read through a memory map.

    Pages that were read are unmapped again, so the memory of the process stays constant. The pages remain in the
    kernel's page cache, which all runs share.
    """

    def __init__(self, folder: Path, side: str, dtype: np.dtype[Any]) -> None:
        try:
            self.offsets: Places = np.fromfile(folder / f"{side}.offsets", np.int64)
            lines = folder / "lines.npy"
            self.lines: Places | None = np.load(lines, allow_pickle=False) if lines.exists() else None
            with (folder / f"{side}.pieces").open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            self.pieces: Pieces = np.frombuffer(self._map, dtype)
        except (OSError, ValueError) as error:
            raise Damaged(f"The encoded corpus in {folder} cannot be read ({error}). {_REDO}") from None
        if len(self.pieces) - 1 != (self.offsets[-1] if len(self.offsets) else None):
            raise Damaged(f"{folder}: the pieces and offsets of its {side} do not fit: it is damaged. {_REDO}")
        self.lengths: Places = np.diff(self.offsets) + 1  # (N,): number of pieces of every row, including EOS
        self._touched = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        return self.pieces[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    def gather(self, rows: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Return rows as an array (B, width), padded with `fill`.

        width: number of columns; at least the number of pieces of the longest row.
        """
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        steps = np.arange(width)
        inside = steps < lengths[:, None]
        lines = np.full((len(rows), width), fill, np.int64)
        lines[inside] = self.read((starts[:, None] + steps)[inside], len(rows))
        return lines

    def read(self, places: Places, regions: int) -> NDArray[np.int64]:
        """Return the pieces at the given indices.

        regions: approximate number of separate regions of the file in which the indices are.
        """
        pieces = self.pieces[places].astype(np.int64)
        self._touched += regions * FAULT_BYTES
        if len(self._map) > MAPPED_BYTES < self._touched:
            self._map.madvise(mmap.MADV_DONTNEED)
            self._touched = 0
        return pieces

    def first(self, count: int | None) -> "Side":
        """Return the first `count` lines of an evaluated running text, as one document.

        Return the side itself if `count` is None or not less than the number of lines, and for sentence pairs.
        """
        if count is None or self.lines is None or count >= len(self.lines):
            return self
        end = int(self.lines[count, 0])
        part = copy.copy(self)
        part.lines, part.pieces = self.lines[:count], self.pieces[: end + 1]
        part.offsets, part.lengths = np.array([0, end]), np.array([end + 1])
        return part


Sides = Mapping[str, Side]
_REDO = "Delete the folder: the next run creates it again."
