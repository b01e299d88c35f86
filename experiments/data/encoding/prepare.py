"""Create an encoded corpus: train the tokenizer, encode once, store it. Imports no torch.

Everything is streamed, so millions of pairs need no more memory than the tokenizer's sample. Encoding uses
SentencePiece's own threads; no process is started.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from experiments.config import DataConfig
from experiments.data.corpora.files import LONGEST_LINE
from experiments.data.corpora.pair_corpus import PairCorpus
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, model_names, open_encoded
from experiments.data.encoding.pairs import SIDES, SideWriter, piece_dtype
from experiments.data.encoding.tokenizer import (
    SAMPLE_PAIRS,
    UNK_ID,
    Tokenizer,
    in_sample,
    tokenizer_settings,
    train_tokenizer,
)
from experiments.data.prefetch import prefetch
from experiments.errors import UserError, explain_os_errors
from experiments.store.checksummed import describe_files, write_json
from experiments.store.durable import locked, make_once, whole_folder

# --- Encode sentence pairs to pieces on disk, with counts for the table's notes


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


# --- Count evaluated sentences that occur, character by character, in the training set


def seen_in_train(train: Iterable[Pair], sets: Mapping[str, Sequence[Pair]]) -> dict[str, dict[str, int]]:
    """Set → how many of its sources, of its targets and of its whole pairs occur in `train`.

    Memory is that of the evaluated sets; `train` is read once, as a stream.
    """
    sources = {source for pairs in sets.values() for source, _ in pairs}
    targets = {target for pairs in sets.values() for _, target in pairs}
    whole = {pair for pairs in sets.values() for pair in pairs}
    seen_sources, seen_targets, seen_pairs = set[str](), set[str](), set[Pair]()
    for pair in train:
        source, target = pair
        if source in sources:
            seen_sources.add(source)
            if pair in whole:
                seen_pairs.add(pair)
        if target in targets:
            seen_targets.add(target)
    return {
        name: {
            "source": sum(source in seen_sources for source, _ in pairs),
            "target": sum(target in seen_targets for _, target in pairs),
            "pair": sum(pair in seen_pairs for pair in pairs),
        }
        for name, pairs in sets.items()
    }


# --- The whole corpus: tokenizer, sets, facts


HELD_PAIRS = (
    200_000  # training sets up to this size are read once and kept in memory (about 60 MB); larger ones are streamed
)

MOST_UNKNOWN = 0.5  # share of a side's words

Progress = Callable[[str, int, int], None]  # what is being done, done, total


def prepare(
    corpus: PairCorpus,
    data: DataConfig,
    shared: bool,
    root: Path,
    progress: Progress,
    workers: int | None = None,
    target_symbols: int = 0,
) -> EncodedCorpus:
    """The encoded corpus under `root` (a store's corpora), created if missing; missing test sets are added.

    shared: one vocabulary for both sides. workers: threads; all cores of this process if None.
    target_symbols: the target is a line of symbols, of which at most so many are learnt; 0: it is text.
    Raises UserError for an unreadable or changing corpus, for a `data.vocab_size` that the text does not allow, and for
    a full or read-only disk. May be interrupted, and called twice at once.
    """
    corpus = corpus.pinned(root)
    counts = corpus.check(root)
    name = encoded_digest(corpus.training_digest(root), data, shared, target_symbols)
    threads = workers or len(os.sched_getaffinity(0))
    work = _Work(corpus, data, shared, target_symbols, counts, progress, threads)
    with explain_os_errors(f"prepare the corpus {corpus.name} under {root}"):
        root.mkdir(parents=True, exist_ok=True)
        make_once(root / name, lambda folder: work.make_train(folder, name))
        encoded = open_encoded(root, name)
        digests = {each: corpus.set_digest(each, root) for each in corpus.sets}
        if any(digest not in encoded.set_digests(each) for each, digest in digests.items()):
            with locked(root, name):
                work.make_sets(encoded, digests)
    return encoded


class _Work:
    """The steps of `prepare`, with the state that they share."""

    def __init__(
        self,
        corpus: PairCorpus,
        data: DataConfig,
        shared: bool,
        target_symbols: int,
        counts: dict[str, int],
        progress: Progress,
        threads: int,
    ) -> None:
        self.corpus, self.data, self.shared, self.target_symbols = corpus, data, shared, target_symbols
        self.counts, self.progress, self.threads = counts, progress, threads
        self._held: list[Pair] | None = None  # a small training set, read (or generated) once for all steps

    def make_train(self, folder: Path, name: str) -> None:
        """Write the tokenizers, train/ and facts.json, with the corpus's digest and those of its files."""
        started = time.monotonic()
        sampled = self._train_tokenizers(folder)
        trained = time.monotonic()
        models = tuple(Tokenizer.load(folder / name) for name in model_names(self.shared))
        (folder / "train").mkdir()
        encoder = Encoder(folder / "train", models, self.threads, self.data.max_pieces)
        encoder.add(self._train_pairs("encoding"))
        encoder.close()
        if not encoder.kept:
            raise UserError(
                f"No training pair of {self.corpus.name} is left: {encoder.dropped_empty:,} have an empty side, "
                f"{encoder.dropped_long:,} a side of more than data.max_pieces = {self.data.max_pieces} pieces. "
                "Check the files, or raise data.max_pieces."
            )
        facts_of_train = encoder.facts()
        _check_words(self.data, SIDES[: 1 if self.target_symbols else 2], facts_of_train, self.corpus.name)
        seconds = max(time.monotonic() - trained, 1e-9)
        facts = {
            "digest": name,
            "files": describe_files(folder / "train", "train/"),
            "corpus": {"name": self.corpus.name, "source": self.corpus.source, "target": self.corpus.target},
            "shared": self.shared,
            "vocab_size": {side: model.vocab_size for side, model in zip(SIDES, models, strict=True)},
            "tokenizer": {
                "settings": tokenizer_settings(self.data, self.shared, self.target_symbols),
                "sha256": {name: model.sha256 for name, model in zip(model_names(self.shared), models, strict=True)},
                "sentencepiece": version("sentencepiece"),
                "trained_on_pairs": sampled,
                "seconds": round(trained - started, 3),
            },
            "max_pieces": self.data.max_pieces,
            "train": facts_of_train,
            "encoding": {
                "seconds": round(seconds, 3),
                "pairs_per_s": round(encoder.pairs / seconds, 1),
                "threads": self.threads,
            },
        }
        write_json(folder / "facts.json", facts)

    def make_sets(self, encoded: EncodedCorpus, digests: dict[str, str]) -> None:
        """Write the missing sets/<name>-<digest>. No pair of an evaluated set is dropped."""
        missing = {each: digest for each, digest in digests.items() if digest not in encoded.set_digests(each)}
        texts = {each: list(self.corpus.read_pairs(each)) for each in missing}
        seen = seen_in_train(self._train_pairs("looking for duplicates"), texts) if missing else {}
        for name, digest in missing.items():
            pairs = texts[name]
            with whole_folder(encoded.folder / "sets" / f"{name}-{digest}") as folder:
                encoder = Encoder(folder, encoded.tokenizers, self.threads)
                encoder.add(pairs)
                encoder.close()
                for side, lines in zip(SIDES, zip(*pairs, strict=True), strict=True):
                    with (folder / f"{side}.txt").open("w", encoding="utf-8", newline="\n") as file:
                        file.writelines(f"{line}\n" for line in lines)
                files = describe_files(folder)
                facts = {"name": name, **encoder.facts(), "seen_in_train": seen[name], "files": files}
                write_json(folder / "facts.json", facts)

    def _train_tokenizers(self, folder: Path) -> int:
        """Train on the training set only; returns its number of pairs."""
        pairs = self.counts["train"]
        sampled = min(pairs, SAMPLE_PAIRS)
        doing = "training the tokenizer"
        names = model_names(self.shared)
        sides = {names[0]: (0, 1)} if self.shared else {names[0]: (0,), names[1]: (1,)}
        for model, columns in sides.items():
            lines = (
                pair[side]
                for index, pair in enumerate(self._train_pairs(doing))
                if in_sample(index, pairs)
                for side in columns
            )
            what = "the training text" if self.shared else f"the {SIDES[columns[0]]} side of the training text"
            symbols = self.target_symbols if columns == (1,) else 0
            train_tokenizer(lines, self.data, folder / model, f"{what} of {self.corpus.name}", symbols=symbols)
        return sampled

    def _train_pairs(self, doing: str) -> Iterator[Pair]:
        total = self.counts["train"]
        if self._held is None and total <= HELD_PAIRS:
            self._held = list(self.corpus.read_pairs("train"))
        pairs = self._held if self._held is not None else self.corpus.read_pairs("train")
        return _reported(pairs, doing, total, self.progress)


def _check_words(data: DataConfig, sides: Sequence[str], facts: Mapping[str, Any], corpus: str) -> None:
    """Raises UserError if most words of a side are unknown: the vocabulary is too small, or spaces part no words."""
    for side in sides if data.units == "word" else ():
        if (rate := facts[side]["unknown_rate"]) > MOST_UNKNOWN:
            raise UserError(
                f"data.units = word cannot hold the {side} side of {corpus}: with data.vocab_size = {data.vocab_size}, "
                f"{rate:.0%} of its words would be unknown. Words are what stands between spaces. Raise "
                "data.vocab_size, or set data.units to byte, char, bpe or unigram, which hold any word."
            )


def _reported(items: Iterable[Item], doing: str, total: int, progress: Progress) -> Iterator[Item]:
    """Yield the items; report after every CHUNK of them and at the end."""
    done = 0
    for done, item in enumerate(items, start=1):
        yield item
        if done % CHUNK == 0:
            progress(doing, done, total)
    progress(doing, done, total)
