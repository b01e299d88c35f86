"""Create an encoded corpus: train the tokenizer, encode once, store it. Imports no torch.

Everything is streamed, so millions of pairs need no more memory than the tokenizer's sample. Encoding uses
SentencePiece's own threads; no process is started.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from experiments.config import DataConfig
from experiments.data.corpora.duplicates import seen_in_train
from experiments.data.corpora.pair_corpus import PairCorpus
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, model_names, open_encoded
from experiments.data.encoding.encoder import CHUNK, Encoder, Pair
from experiments.data.encoding.pairs import SIDES
from experiments.data.encoding.tokenizer import (
    SAMPLE_PAIRS,
    Tokenizer,
    in_sample,
    tokenizer_settings,
    train_tokenizer,
)
from experiments.errors import UserError, explain_os_errors
from experiments.store.durable import locked, make_once, whole_folder
from experiments.store.sealed import describe_files, write_json

HELD_PAIRS = (
    200_000  # training sets up to this size are read once and kept in memory (about 60 MB); larger ones are streamed
)

MOST_UNKNOWN = 0.5  # share of a side's words

Progress = Callable[[str, int, int], None]  # what is being done, done, total
Item = TypeVar("Item")


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
