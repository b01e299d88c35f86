"""Encode sentence pairs to pieces on disk, with counts for the table's notes. Imports no torch."""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from experiments.data.corpora.files import LONGEST_LINE
from experiments.data.encoding.pairs import SIDES, SideWriter, piece_dtype
from experiments.data.encoding.tokenizer import UNK_ID, Tokenizer
from experiments.data.prefetch import prefetch

CHUNK = 16_384  # pairs per chunk
PIECE = 16  # characters of SentencePiece's longest piece

Pair = tuple[str, str]
Item = TypeVar("Item")


def chunks(items: Iterable[Item], size: int = CHUNK) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one shorter."""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


@dataclass(frozen=True)
class _Chunk:
    read: int  # pairs, those with an empty side or one that is no sentence too
    over_long: int  # pairs with a side that is no sentence
    texts: list[list[str]]  # by side
    lines: list[list[list[int]]]  # by side: the pieces of each


class Encoder:
    """Writes one set into a folder. Lines are encoded by `threads` threads of SentencePiece.

    With `max_pieces` (training set), pairs with an empty side or a side of more pieces (EOS counted) are dropped and
    counted. Without it (evaluated sets), every pair is kept.
    """

    def __init__(
        self, folder: Path, tokenizers: Sequence[Tokenizer], threads: int, max_pieces: int | None = None
    ) -> None:
        self._tokenizers = tokenizers
        self._threads = threads
        self._max_pieces = max_pieces
        self._writers = [
            SideWriter(folder, side, piece_dtype(tokenizer.vocab_size))
            for side, tokenizer in zip(SIDES, tokenizers, strict=True)
        ]
        self._pieces, self._unknown, self._characters = [0, 0], [0, 0], [0, 0]
        self.pairs = self.kept = self.dropped_empty = self.dropped_long = 0

    def add(self, pairs: Iterable[Pair]) -> None:
        """Encode and write pairs in chunks: one is written while the next is read and encoded."""
        with contextlib.closing(prefetch(map(self._encode, chunks(pairs)), depth=1)) as encoded:
            for chunk in encoded:
                self._write(chunk)

    def _encode(self, pairs: Sequence[Pair]) -> _Chunk:
        read, over_long = len(pairs), 0
        if self._max_pieces:
            pairs = [pair for pair in pairs if pair[0].strip() and pair[1].strip()]
            longest = max(LONGEST_LINE, PIECE * self._max_pieces)  # of more characters none fits
            over_long = sum(max(map(len, pair)) > longest for pair in pairs)
            pairs = [pair for pair in pairs if max(map(len, pair)) <= longest] if over_long else pairs
        texts = [[pair[side] for pair in pairs] for side in (0, 1)]
        lines = [
            tokenizer.encode_batch(text, self._threads) for tokenizer, text in zip(self._tokenizers, texts, strict=True)
        ]
        return _Chunk(read, over_long, texts, lines)

    def _write(self, chunk: _Chunk) -> None:
        texts, lines = chunk.texts, chunk.lines
        self.pairs += chunk.read
        self.dropped_empty += chunk.read - chunk.over_long - len(lines[0])
        self.dropped_long += chunk.over_long
        if self._max_pieces:
            longest = self._max_pieces - 1  # EOS is added when batches are made
            fits = [len(s) <= longest and len(t) <= longest for s, t in zip(*lines, strict=True)]
            if not all(fits):
                self.dropped_long += len(fits) - sum(fits)
                lines = [[line for line, fit in zip(side, fits, strict=True) if fit] for side in lines]
                texts = [[line for line, fit in zip(side, fits, strict=True) if fit] for side in texts]
        self.kept += len(lines[0])
        for side in (0, 1):
            pieces = self._writers[side].add(lines[side])
            self._pieces[side] += len(pieces)
            self._unknown[side] += int(np.count_nonzero(pieces == UNK_ID))
            self._characters[side] += sum(map(len, texts[side]))

    def close(self) -> None:
        """Finish the files of both sides."""
        for writer in self._writers:
            writer.close()

    def facts(self) -> dict[str, Any]:
        """Counts, and rates over the kept pairs, without EOS."""
        return {
            "pairs": self.pairs,
            "kept": self.kept,
            "dropped_empty": self.dropped_empty,
            "dropped_long": self.dropped_long,
            **{name: self._side_facts(side) for side, name in enumerate(SIDES)},
        }

    def _side_facts(self, side: int) -> dict[str, float]:
        pieces, characters, unknown = self._pieces[side], self._characters[side], self._unknown[side]
        return {
            "pieces": pieces,
            "characters": characters,
            "unknown": unknown,
            "unknown_rate": unknown / pieces if pieces else 0.0,
            "pieces_per_line": pieces / self.kept if self.kept else 0.0,
            "characters_per_line": characters / self.kept if self.kept else 0.0,
        }
