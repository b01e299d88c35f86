"""Encoded sentence pairs on disk, read through memory maps. Imports no torch.

A folder per set: source.pieces and target.pieces (all pieces end to end, uint16 or uint32, no special symbols),
source.offsets.npy and target.offsets.npy (int64, one more than pairs).
"""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.encoding.mapped import MappedPieces, Pieces
from experiments.errors import UserError

SIDES = ("source", "target")
BLOCK_BYTES = 1 << 20  # block size for computing offsets from lengths


def piece_dtype(vocab_size: int) -> np.dtype[Any]:
    return np.dtype(np.uint16 if vocab_size <= 1 << 16 else np.uint32)


class SideWriter:
    """Appends encoded lines to one side of a folder; keeps at most one block in memory."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype[Any]) -> None:
        self._offsets_path = folder / f"{side}.offsets.npy"
        self._file = (folder / f"{side}.pieces").open("wb")
        self._dtype = dtype
        self._lengths = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - closed by close()
        self._lines = 0

    def add(self, lines: Sequence[Sequence[int]]) -> Pieces:
        """Write a chunk of lines; returns its pieces as one array."""
        lengths = np.fromiter(map(len, lines), np.int32, len(lines))
        pieces = np.fromiter(itertools.chain.from_iterable(lines), self._dtype, int(lengths.sum()))
        self._lines += len(lines)
        self._lengths.write(lengths.tobytes())
        self._file.write(pieces.tobytes())
        return pieces

    def close(self) -> None:
        """Finish the pieces, and write the offsets of the sentences as an array (sentences + 1)."""
        self._file.close()
        self._lengths.seek(0)
        header = {"descr": "<i8", "fortran_order": False, "shape": (self._lines + 1,)}
        with self._offsets_path.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            end = np.zeros(1, "<i8")
            file.write(end.tobytes())
            while block := self._lengths.read(BLOCK_BYTES):
                offsets = end + np.cumsum(np.frombuffer(block, np.int32), dtype="<i8")
                file.write(offsets.tobytes())
                end = offsets[-1:]
        self._lengths.close()


class Side:
    """One side's lines; ids are read from the memory map on access."""

    def __init__(self, folder: Path, side: str, dtype: np.dtype[Any]) -> None:
        path = folder / f"{side}.pieces"
        try:
            self.offsets: NDArray[np.int64] = np.load(folder / f"{side}.offsets.npy")
            size = path.stat().st_size
        except (OSError, ValueError) as error:
            raise UserError(f"The encoded corpus in {folder} cannot be read ({error}). {_REDO}") from None
        if size != self.offsets[-1] * dtype.itemsize:
            raise UserError(f"{path} has {size} bytes, which does not match its offsets: it is damaged. {_REDO}")
        self._mapped = MappedPieces(path, dtype)
        self.pieces: Pieces = self._mapped.all

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> NDArray[np.int64]:
        return self.pieces[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Pieces of every line, EOS counted: (N,)."""
        return np.diff(self.offsets) + 1

    def gather(self, rows: NDArray[np.int64], width: int, fill: int) -> NDArray[np.int64]:
        """Lines as the rows of an array (B, width), padded with `fill`; width >= the longest line's pieces."""
        starts = self.offsets[rows]
        lengths = self.offsets[rows + 1] - starts
        steps = np.arange(width)
        inside = steps < lengths[:, None]
        lines = np.full((len(rows), width), fill, np.int64)
        lines[inside] = self._mapped.read((starts[:, None] + steps)[inside], len(rows))
        return lines


class EncodedPairs:
    """The pairs of one set: pair i is (source[i], target[i]), pieces without special symbols."""

    def __init__(self, folder: Path, dtypes: Sequence[np.dtype[Any]]) -> None:
        self.source, self.target = (Side(folder, side, dtype) for side, dtype in zip(SIDES, dtypes, strict=True))
        self.source_lengths, self.target_lengths = self.source.lengths, self.target.lengths
        if len(self.source) != len(self.target):
            raise UserError(f"The encoded corpus in {folder} has sides of unequal length: it is damaged. {_REDO}")

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return self.source[index], self.target[index]


_REDO = "Delete the folder: the next run creates it again."
