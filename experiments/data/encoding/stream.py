"""Running text as one row of pieces on disk, read through a memory map. Imports no torch.

A folder per set: pieces (uint16 or uint32), each document with EOS before it and after it: EOS d₁ EOS d₂ … EOS; and
documents.npy (int64): the places of these EOS. An evaluated set has also lines.npy (int64): of each line the place of
its first piece, its bytes and its words.
"""

import copy
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.data.corpora.text.corpus import Line
from experiments.data.encoding.mapped import MappedPieces
from experiments.data.encoding.tokenizer import EOS_ID, Tokenizer
from experiments.data.encoding.utf8 import to_bytes
from experiments.errors import Damaged

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


_REDO = "Delete the folder: the next run creates it again."
