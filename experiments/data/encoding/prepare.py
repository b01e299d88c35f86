"""Create an encoded corpus: train the tokenizer, encode the text and store the pieces. Imports no torch.

The text is streamed, so even millions of pairs need no more memory than the sample that trains the tokenizer.
SentencePiece encodes with its own threads; no processes are started.
"""

import os
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any, NoReturn

from experiments.config.data import DataConfig
from experiments.data.corpora.corpus import SIDES, Corpus
from experiments.data.corpora.files import write_lines
from experiments.data.encoding.encode_rows import CHUNK, Encoder, Row
from experiments.data.encoding.encoded import EncodedCorpus, encoded_digest, model_names, open_encoded
from experiments.data.encoding.tokenizer import SAMPLE_BYTES, Tokenizer, in_sample, tokenizer_settings, train_tokenizer
from experiments.errors import UserError, explain_os_errors
from experiments.store.checksummed import describe_files, write_json
from experiments.store.durable import locked, make_once, whole_folder

SHORTEST = 20  # characters; shorter lines of running text are not compared, because they may be equal by chance

Key = Callable[[Row], Hashable]
OF_PAIRS: Mapping[str, Key] = {"source": itemgetter(0), "target": itemgetter(1), "pair": tuple}


def _long_line(line: Row) -> str | None:
    text: str = line[0].strip()
    return text if len(text) >= SHORTEST else None


def seen_in_train(
    train: Iterable[Row], sets: Mapping[str, Sequence[Row]], keys: Mapping[str, Key] = OF_PAIRS
) -> dict[str, dict[str, int]]:
    """Return for each set how many of its sources, targets and pairs occur in `train`.

    `train` is read once as a stream, so only the evaluated sets are kept in memory.

    keys: name → function that returns the value of a row to compare. Rows whose value is None are not counted.
    """
    wanted = {what: {key(row) for rows in sets.values() for row in rows} - {None} for what, key in keys.items()}
    seen: dict[str, set[Hashable]] = {what: set() for what in keys}
    for row in train:
        for what, key in keys.items():
            if (value := key(row)) in wanted[what]:
                seen[what].add(value)
    return {
        name: {what: sum(key(row) in seen[what] for row in rows) for what, key in keys.items()}
        for name, rows in sets.items()
    }


# Training sets up to this size are read once and kept in memory (about 60 MB). Larger sets are streamed.
HELD_PAIRS = 200_000

MOST_UNKNOWN = 0.5  # maximum share of unknown words on a side

Progress = Callable[[str, int, int], None]  # (activity, rows done, total rows or 0 if unknown)


def prepare(
    corpus: Corpus,
    data: DataConfig,
    shared: bool,
    root: Path,
    progress: Progress,
    workers: int | None = None,
) -> EncodedCorpus:
    """Return the encoded corpus under `root`, the folder of a store's corpora. Create its missing parts.

    The function may be interrupted, and several processes may call it at the same time. Raises UserError if the corpus
    is unreadable or changes, if the text does not allow `data.vocab_size`, and if the disk is full or read-only.

    shared: whether source and target share one vocabulary.
    workers: number of threads; None uses all cores of this process.
    """
    corpus = corpus.pinned(root)
    counts = corpus.check(root)
    name = encoded_digest(corpus.training_digest(root), data, shared)
    threads = workers or len(os.sched_getaffinity(0))
    work = _Work(corpus, data, shared, counts.get("train", 0), progress, threads)
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
        corpus: Corpus,
        data: DataConfig,
        shared: bool,
        pairs: int,
        progress: Progress,
        threads: int,
    ) -> None:
        self.corpus, self.data, self.shared = corpus, data, shared
        # pairs: number of training pairs; 0 for running text, which is not counted
        self.pairs, self.progress, self.threads = pairs, progress, threads
        self._held: list[Row] | None = None  # a small training set, read or generated once for all steps

    def make_train(self, folder: Path, name: str) -> None:
        """Write the tokenizers, train/ and facts.json, which includes the corpus's digest and the hashes of files."""
        started = time.monotonic()
        doing = "training the tokenizer"
        models = learn_tokenizers(
            self.corpus,
            self.data,
            self.shared,
            folder,
            lambda: self._train_rows(doing),
            self.pairs,
        )
        trained, tokenizers = time.monotonic(), self._by_side(models)
        (folder / "train").mkdir()
        encoder = Encoder(folder / "train", tokenizers, self.threads, self.data.max_pieces if self.pairs else None)
        encoder.add(self._train_rows("encoding"))
        encoder.close()
        if not encoder.kept:
            self._refuse_empty("train", encoder)
        facts_of_train = encoder.facts()
        _check_words(self.data, SIDES[: 1 if self.data.target_symbols else 2], facts_of_train, self.corpus.name)
        seconds = max(time.monotonic() - trained, 1e-9)
        facts = {
            "digest": name,
            "files": describe_files(folder / "train", "train/"),
            "corpus": {"name": self.corpus.name, "source": self.corpus.source, "target": self.corpus.target},
            "shared": self.shared,
            "vocab_size": {side: tokenizer.vocab_size for side, tokenizer in tokenizers.items()},
            "tokenizer": {
                "settings": tokenizer_settings(self.data, self.shared),
                "sha256": {name: model.sha256 for name, model in zip(model_names(self.shared), models, strict=True)},
                "sentencepiece": version("sentencepiece"),
                "seconds": round(trained - started, 3),
            },
            "max_pieces": self.data.max_pieces,
            "train": facts_of_train,
            "encoding": {
                "seconds": round(seconds, 3),
                "rows_per_s": round(encoder.read / seconds, 1),
                "threads": self.threads,
            },
        }
        write_json(folder / "facts.json", facts)

    def make_sets(self, encoded: EncodedCorpus, digests: dict[str, str]) -> None:
        """Write the missing folders sets/<name>-<digest>. No row of an evaluated set is dropped."""
        missing = {each: digest for each, digest in digests.items() if digest not in encoded.set_digests(each)}
        texts = {each: list(self.corpus.read(each)) for each in missing}
        keys = OF_PAIRS if self.pairs else {"lines": _long_line}
        seen = seen_in_train(self._train_rows("searching duplicates"), texts, keys) if missing else {}
        for name, digest in missing.items():
            rows = texts[name]
            with whole_folder(encoded.folder / "sets" / f"{name}-{digest}") as folder:
                encoder = Encoder(folder, self._by_side(encoded.tokenizers), self.threads, measured=True)
                encoder.add(rows)
                encoder.close()
                if self.pairs:
                    for side, lines in zip(SIDES, zip(*rows, strict=True), strict=True):
                        write_lines(folder / f"{side}.txt", lines)
                else:
                    if not rows:
                        self._refuse_empty(name, encoder)
                    seen[name]["of"] = sum(_long_line(row) is not None for row in rows)
                files = describe_files(folder)
                facts = {"name": name, **encoder.facts(), "seen_in_train": seen[name], "files": files}
                write_json(folder / "facts.json", facts)

    def _by_side(self, models: Sequence[Tokenizer]) -> dict[str, Tokenizer]:
        return {side: models[SIDES.index(side)] for side in self.corpus.sides}

    def _refuse_empty(self, name: str, encoder: Encoder) -> NoReturn:
        if not self.pairs:
            raise UserError(f"The {name} text of this corpus is empty. Put text into its files, or leave them out.")
        raise UserError(
            f"No training pair of {self.corpus.name} is left: {encoder.dropped_empty:,} have an empty side, "
            f"{encoder.dropped_long:,} a side of more than data.max_pieces = {self.data.max_pieces} pieces. "
            "Check the files, or raise data.max_pieces."
        )

    def _train_rows(self, doing: str) -> Iterator[Row]:
        if self._held is None and 0 < self.pairs <= HELD_PAIRS:
            self._held = list(self.corpus.read("train"))
        rows = self._held if self._held is not None else self.corpus.read("train")
        done = 0
        for done, row in enumerate(rows, start=1):
            yield row
            if done % CHUNK == 0:
                self.progress(doing, done, self.pairs)
        self.progress(doing, done, self.pairs)


def learn_tokenizers(
    corpus: Corpus,
    data: DataConfig,
    shared: bool,
    folder: Path,
    read: Callable[[], Iterator[Row]],
    pairs: int,
) -> tuple[Tokenizer, Tokenizer]:
    """Train source and target tokenizers on the training set alone, write them to `folder`, and return them.

    read: function that returns a new iterator over the training set.
    pairs: number of training pairs; 0 for running text.
    """
    names = model_names(shared)
    columns = range(len(corpus.sides))
    for model, numbers in {names[0]: columns}.items() if shared else zip(names, ([0], [1]), strict=True):
        lines = (row[number] for row in _sampled(corpus, read, pairs) for number in numbers)
        what = "the training text" if shared else f"the {SIDES[numbers[0]]} side of the training text"
        symbols = data.target_symbols if model == "target.model" else 0
        train_tokenizer(lines, data, folder / model, f"{what} of {corpus.name}", symbols=symbols)
    source = Tokenizer.load(folder / names[0])
    return source, source if shared else Tokenizer.load(folder / names[1])


def _sampled(corpus: Corpus, read: Callable[[], Iterator[Row]], pairs: int) -> Iterator[Row]:
    """Yield the rows that train the tokenizers: all rows, or an evenly spaced sample."""
    if len(corpus.sides) == 1:
        every = sum(len(line[0]) for line in read()) // SAMPLE_BYTES + 1
        yield from (line for number, line in enumerate(read()) if number % every == 0)
    else:
        yield from (pair for number, pair in enumerate(read()) if in_sample(number, pairs))


def _check_words(data: DataConfig, sides: Sequence[str], facts: Mapping[str, Any], corpus: str) -> None:
    """Raise UserError if most words of a side are unknown.

    This happens if the vocabulary is too small, or if the language does not separate words by spaces.
    """
    for side in sides if data.units == "word" else ():
        if (rate := facts[side]["unknown_rate"]) > MOST_UNKNOWN:
            raise UserError(
                f"data.units = word cannot hold the {side} side of {corpus}: with data.vocab_size = {data.vocab_size}, "
                f"{rate:.0%} of its words would be unknown. Words are separated by spaces. Raise "
                "data.vocab_size, or set data.units to byte, char, bpe or unigram, which hold any word."
            )
