"""Encode rows, write their word pieces to disk, and count them for the notes of the table.

A row is a sentence pair, or a line of running text with a flag that is true if the line begins a document.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data.corpora.files import LONGEST_LINE
from experiments.data.encoding.sides import SideWriter, piece_dtype
from experiments.data.encoding.tokenizer import EOS_ID, SPACE, Tokenizer
from experiments.data.encoding.utf8 import to_bytes
from experiments.data.prefetch import prefetch

CHUNK, CHUNK_CHARACTERS = 16_384, 1 << 22  # a chunk ends at this number of rows, or beyond this number of characters
PIECE = 16  # maximum number of characters of a SentencePiece piece

Row = tuple[Any, ...]


def chunks(rows: Iterable[Row], sides: int) -> Iterator[list[Row]]:
    """Yield lists of rows that are encoded together."""
    chunk: list[Row] = []
    size = 0
    for row in rows:
        chunk.append(row)
        size += sum(map(len, row[:sides]))
        if len(chunk) == CHUNK or size > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


class _Chunk(NamedTuple):
    """An encoded chunk of rows."""

    read: int  # number of rows read, including dropped rows
    over_long: int  # number of pairs dropped before encoding, because a side has too many characters
    rows: Sequence[Row]
    lines: list[list[list[int]]]  # piece ids: [side][row][position]


class Encoder:
    """A writer that encodes one set into a folder, with `threads` threads of SentencePiece.

    tokenizers: the tokenizer of each side; running text has one side.
    max_pieces: maximum number of pieces of a side, including EOS. Pairs with a longer or an empty side are dropped and
        counted. None keeps every row.
    measured: whether to store the position, bytes and words of each line of running text.
    """

    def __init__(
        self,
        folder: Path,
        tokenizers: Mapping[str, Tokenizer],
        threads: int,
        max_pieces: int | None = None,
        *,
        measured: bool = False,
    ) -> None:
        self._folder, self._tokenizers, self._threads = folder, tokenizers, threads
        self._max_pieces, self._measured = max_pieces, measured
        sizes = {side: tokenizer.vocab_size for side, tokenizer in tokenizers.items()}
        self._writers = {side: SideWriter(folder, side, piece_dtype(size)) for side, size in sizes.items()}
        self._characters = dict.fromkeys(tokenizers, 0)
        self._bytes, self._lines = 0, list[Any]()
        self.read = self.kept = self.dropped_empty = self.dropped_long = 0

    def add(self, rows: Iterable[Row]) -> None:
        """Encode and write rows in chunks. One chunk is written while the next is read and encoded."""
        encoded = map(self._encode, chunks(rows, len(self._tokenizers)))
        with contextlib.closing(prefetch(encoded, depth=1)) as ahead:
            for chunk in ahead:
                self._write(chunk)

    def _encode(self, rows: Sequence[Row]) -> _Chunk:
        read, over_long = len(rows), 0
        if self._max_pieces:
            rows = [row for row in rows if row[0].strip() and row[1].strip()]
            longest = max(LONGEST_LINE, PIECE * self._max_pieces)  # a longer line has more than max_pieces pieces
            over_long = sum(max(map(len, row)) > longest for row in rows)
            rows = [row for row in rows if max(map(len, row)) <= longest] if over_long else rows
        lines = [
            tokenizer.encode_batch([row[number] for row in rows], self._threads)
            for number, tokenizer in enumerate(self._tokenizers.values())
        ]
        return _Chunk(read, over_long, rows, lines)

    def _write(self, chunk: _Chunk) -> None:
        rows, lines = chunk.rows, chunk.lines
        self.read += chunk.read
        self.dropped_empty += chunk.read - chunk.over_long - len(rows)
        self.dropped_long += chunk.over_long
        if self._max_pieces:
            longest = self._max_pieces - 1  # EOS is added when batches are made
            fits = [all(len(line) <= longest for line in pair) for pair in zip(*lines, strict=True)]
            if not all(fits):
                self.dropped_long += len(fits) - sum(fits)
                lines = [[line for line, fit in zip(side, fits, strict=True) if fit] for side in lines]
                rows = [row for row, fit in zip(rows, fits, strict=True) if fit]
        self.kept += len(rows)
        for number, side in enumerate(self._writers):
            self._characters[side] += sum(len(row[number]) for row in rows)
        if len(lines) == 1:
            self._write_text(rows, lines[0])
        else:
            for writer, side_lines in zip(self._writers.values(), lines, strict=True):
                writer.add(side_lines)

    def _write_text(self, rows: Sequence[Row], lines: Sequence[list[int]]) -> None:
        """Write lines of running text, with EOS before each document."""
        [(side, writer)] = self._writers.items()
        starts = np.fromiter((row[1] for row in rows), bool, len(rows))
        places = writer.add(
            [[EOS_ID, *line] if begins else line for begins, line in zip(starts, lines, strict=True)], starts
        )
        exact = self._tokenizers[side].is_bytes
        sizes = [len(to_bytes(row[0] if exact else row[0].replace(SPACE, " "))) for row in rows]
        self._bytes += sum(sizes)
        if self._measured:
            words = [len(row[0].split()) for row in rows]
            self._lines.append(np.stack([places + starts, np.array(sizes), np.array(words)], axis=1))

    def close(self) -> None:
        """Finish and close the files."""
        for writer in self._writers.values():
            writer.close()
        if self._lines:
            np.save(self._folder / "lines.npy", np.concatenate(self._lines), allow_pickle=False)

    def facts(self) -> dict[str, Any]:
        """Return the counts for facts.json. For pairs, they include rates over the pairs that were not dropped.

        The rates do not count EOS.
        """
        sides = {side: self._side_facts(side) for side in self._writers}
        if len(sides) > 1:
            dropped = {"dropped_empty": self.dropped_empty, "dropped_long": self.dropped_long}
            return {"pairs": self.read, "kept": self.kept, **dropped, **sides}
        [facts] = sides.values()
        pieces = facts["pieces"] + 1  # the final EOS counts
        return {"lines": self.kept, "bytes": self._bytes, "characters": facts["characters"], "pieces": pieces}

    def _side_facts(self, side: str) -> dict[str, Any]:
        pieces, unknown, characters = self._writers[side].pieces, self._writers[side].unknown, self._characters[side]
        return {
            "pieces": pieces,
            "characters": characters,
            "unknown": unknown,
            "unknown_rate": unknown / pieces if pieces else 0.0,
            "pieces_per_line": pieces / self.kept if self.kept else 0.0,
            "characters_per_line": characters / self.kept if self.kept else 0.0,
        }
