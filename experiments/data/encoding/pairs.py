"""Encoded sentence pairs and encoded running text on disk, read through memory maps. Imports no torch.

Pieces are uint16 or uint32. A set of pairs is a folder: source.pieces and target.pieces (all pieces end to end, no
special symbols), source.offsets.npy and target.offsets.npy (int64, one more than pairs). A set of text is a folder:
pieces, each document with EOS before it and after it: EOS d₁ EOS d₂ … EOS; and documents.npy (int64): the places of
these EOS. An evaluated set of text also has lines.npy (int64): of each line the place of its first piece, its bytes and
its words.
"""

import copy
import itertools
import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.corpora.text import Line
from experiments.data.encoding.tokenizer import EOS_ID, Tokenizer, to_bytes
from experiments.errors import Damaged, UserError

# --- Running text as one row of pieces


Places = NDArray[np.int64]
SPACE = "\u2581"  # SentencePiece reads it as a space: three bytes that become one


class StreamWriter:
    """Encodes lines and appends them to a folder. `measured`: keep what is known of each line."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, dtype: np.dtype[Any], threads: int, *, measured: bool):
        self._folder, self._tokenizer, self._dtype, self._threads = folder, tokenizer, dtype, threads
        self._file = (folder / "pieces").open("wb")
        self._documents: list[int] = []
        self._lines: list[NDArray[np.int64]] = []
        self._measured = measured
        self.pieces = self.bytes = self.lines = self.characters = 0

    def add(self, lines: Sequence[Line]) -> None:
        """Write a chunk."""
        encoded = self._tokenizer.encode_batch([line.text for line in lines], self._threads)
        starts = np.fromiter((line.starts for line in lines), bool, len(lines))
        lengths = np.fromiter(map(len, encoded), np.int64, len(lines)) + starts
        first = self.pieces + np.cumsum(lengths) - lengths  # with the EOS before it
        self._documents += first[starts].tolist()
        ends = [EOS_ID]
        rows = itertools.chain.from_iterable(
            (ends, ids) if line.starts else (ids,) for line, ids in zip(lines, encoded, strict=True)
        )
        pieces = np.fromiter(itertools.chain.from_iterable(rows), self._dtype, int(lengths.sum()))
        self._file.write(pieces.tobytes())
        sizes = [self._size(line.text) for line in lines]
        if self._measured:
            words = [len(line.text.split()) for line in lines]
            self._lines.append(np.stack([first + starts, np.array(sizes), np.array(words)], axis=1))
        self.pieces += len(pieces)
        self.bytes += sum(sizes)
        self.characters += sum(len(line.text) for line in lines)
        self.lines += len(lines)

    def _size(self, text: str) -> int:
        return len(to_bytes(text if self._tokenizer.is_bytes else text.replace(SPACE, " ")))

    def close(self) -> None:
        """Write the last EOS and the places."""
        self._file.write(np.array([EOS_ID], self._dtype).tobytes())
        self._file.close()
        self._documents.append(self.pieces)
        self.pieces += 1
        np.save(self._folder / "documents.npy", np.array(self._documents, np.int64), allow_pickle=False)
        if self._measured:
            np.save(self._folder / "lines.npy", np.concatenate(self._lines), allow_pickle=False)


class Stream:
    """The pieces of one set."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        try:
            self.documents: Places = np.load(folder / "documents.npy", allow_pickle=False)
            lines = folder / "lines.npy"
            self.lines: Places | None = np.load(lines, allow_pickle=False) if lines.exists() else None
            self._mapped = MappedPieces(folder / "pieces", dtype)
        except (OSError, ValueError) as error:
            raise Damaged(f"{folder} cannot be read ({error}). {_REDO}") from None
        self.pieces = self._mapped.all
        if len(self.pieces) != self.documents[-1] + 1:
            raise Damaged(f"{folder} has {len(self.pieces)} pieces and {self.documents[-1] + 1} places. {_REDO}")

    def __len__(self) -> int:
        return len(self.pieces)

    def first(self, count: int | None) -> "Stream":
        """The first so many lines of an evaluated set, as one document; None: itself."""
        if count is None or self.lines is None or count >= len(self.lines):
            return self
        end = int(self.lines[count, 0])
        part = copy.copy(self)
        part.lines, part.documents, part.pieces = self.lines[:count], np.array([0, end]), self.pieces[: end + 1]
        return part

    def windows(self, places_BW: Places) -> Places:
        """The pieces at these places, of windows one a row: (B, W)."""
        return self._mapped.read(places_BW, len(places_BW))


# --- A memory map whose pages are given back


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


# --- Pairs


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
