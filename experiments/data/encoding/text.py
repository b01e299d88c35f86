"""Create and open encoded running text: train the tokenizer, encode once, store it. Imports no torch.

<root>/<digest>/facts.json, tokenizer.model, train/, sets/<name>-<set digest>/: pairs.py says what a set holds.
Everything is streamed; memory is that of the tokenizer's sample and of the evaluated sets' lines.
"""

import glob
import os
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from experiments.data.corpora.text import Line, TextCorpus, TextData
from experiments.data.encoding.encoded import check_files, read_checked
from experiments.data.encoding.pairs import Stream, StreamWriter, piece_dtype
from experiments.data.encoding.prepare import Progress
from experiments.data.encoding.tokenizer import RUNNING_TEXT, Tokenizer, tokenizer_settings, train_tokenizer
from experiments.errors import Damaged, UserError, explain_os_errors
from experiments.identity import digest
from experiments.store.checksummed import describe_files, read_json, write_json
from experiments.store.durable import locked, make_once, whole_folder

FORMAT = 1  # of the folder; part of the digest
CHUNK, CHUNK_CHARACTERS = 8192, 1 << 22  # lines encoded at once, and characters, beyond which no line is added
SAMPLE_BYTES = 100_000_000  # the tokenizer learns from about so many, at even distances
SHORTEST = 20  # characters: shorter lines occur twice by chance
MODEL = "tokenizer.model"


def text_digest(training_digest: str, data: TextData) -> str:
    """The name of an encoded text: digest of its content, tokenizer settings and format."""
    return digest({"text": FORMAT, "corpus": training_digest, "tokenizer": _settings(data)})


def _settings(data: TextData) -> dict[str, Any]:
    settings = tokenizer_settings(data, shared=True)
    return settings if data.units == "byte" else {**settings, **RUNNING_TEXT, "sample_bytes": SAMPLE_BYTES}


class EncodedText:
    """An encoded text as a run reads it."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder, self._files = folder, facts["files"]
        self.facts = {name: value for name, value in facts.items() if name != "files"}
        self.digest = folder.name

    @cached_property
    def train(self) -> Stream:
        """The training text; its files are hashed once, here. Raises Damaged."""
        check_files(self.folder, self._files, self._redo)
        return Stream(self.folder / "train", self._dtype)

    def tokenizer_model(self) -> bytes:
        """The bytes of the tokenizer that encoded this text. Raises Damaged."""
        return read_checked(self.folder / MODEL, self.facts["tokenizer"]["sha256"][MODEL], self._redo)

    def has(self, name: str, set_digest: str) -> bool:
        """Whether a set is prepared."""
        return (self.folder / "sets" / f"{name}-{set_digest}").is_dir()

    def only_set(self, name: str) -> tuple[Stream, dict[str, Any]]:
        """The prepared set of this name. Raises ValueError if there are several, with different content."""
        [place] = (self.folder / "sets").glob(f"{glob.escape(name)}-{'[0-9a-f]' * 16}")
        return self.set(name, place.name.removeprefix(f"{name}-"))

    def set(self, name: str, set_digest: str) -> tuple[Stream, dict[str, Any]]:
        """A prepared set and its facts. Raises UserError if it was not prepared, Damaged."""
        folder = self.folder / "sets" / f"{name}-{set_digest}"
        facts = read_json(folder / "facts.json")
        if facts is None and folder.is_dir():
            raise Damaged(f"{folder} is damaged: its facts.json is missing. {self._redo}")
        if facts is None:
            raise UserError(
                f'The set "{name}" is not prepared in {self.folder}, or its files have changed since. '
                "`ablations run` or `evaluate` prepares it."
            )
        check_files(folder, facts.pop("files"), self._redo)
        return Stream(folder, self._dtype), facts

    @property
    def _dtype(self) -> Any:
        return piece_dtype(self.facts["vocab_size"]["target"])

    @property
    def _redo(self) -> str:
        return f"Delete {self.folder}: the next run creates it again."


def open_text(root: Path, name: str) -> EncodedText:
    """Open an encoded text of `prepare_text`. Raises UserError if it is missing or incomplete, Damaged."""
    facts = read_json(root / name / "facts.json")
    if facts is None:
        raise UserError(f"There is no encoded text {root / name}. `ablations run` prepares it.")
    if facts["digest"] != name:
        raise Damaged(f"{root / name} holds another encoded text. Delete it: the next run creates it again.")
    return EncodedText(root / name, facts)


def prepare_text(corpus: TextCorpus, data: TextData, root: Path, progress: Progress) -> EncodedText:
    """The encoded text under `root` (a store's corpora), created if missing; missing sets are added.

    Raises UserError for an unreadable or changing corpus, for a `data.vocab_size` that the text does not allow, and for
    a full or read-only disk. May be interrupted, and called twice at once.
    """
    corpus = corpus.pinned(root)
    corpus.check(root)
    name = text_digest(corpus.training_digest(root), data)
    with explain_os_errors(f"prepare the corpus {corpus.name} under {root}"):
        root.mkdir(parents=True, exist_ok=True)
        make_once(root / name, lambda folder: _make_train(folder, name, corpus, data, progress))
        encoded = open_text(root, name)
        digests = {each: corpus.set_digest(each, root) for each in corpus.sets}
        if not all(encoded.has(*each) for each in digests.items()):
            with locked(root, name):
                _make_sets(encoded, {k: v for k, v in digests.items() if not encoded.has(k, v)}, corpus, progress)
    return encoded


def _threads() -> int:
    return len(os.sched_getaffinity(0))


def _make_train(folder: Path, name: str, corpus: TextCorpus, data: TextData, progress: Progress) -> None:
    """Write the tokenizer, train/ and facts.json."""
    progress("training the tokenizer", 0, 1)
    tokenizer = learn_pieces(corpus, data, folder / MODEL)
    (folder / "train").mkdir()
    writer = _encoded(folder / "train", tokenizer, corpus.read_lines("train"), progress, "train", measured=False)
    facts = {
        "digest": name,
        "files": describe_files(folder / "train", "train/"),
        "corpus": {"name": corpus.name},
        "vocab_size": {"target": tokenizer.vocab_size},
        "tokenizer": {
            "settings": _settings(data),
            "sha256": {MODEL: tokenizer.sha256},
            "sentencepiece": version("sentencepiece"),
        },
        "train": _counts(writer),
    }
    write_json(folder / "facts.json", facts)


def learn_pieces(corpus: TextCorpus, data: TextData, model: Path) -> Tokenizer:
    """Train a tokenizer on the training text, or an even sample of its lines, and write it to `model`."""
    size = 0 if data.units == "byte" else sum(len(line.text) for line in corpus.read_lines("train"))
    every = size // SAMPLE_BYTES + 1
    sample = (line.text for number, line in enumerate(corpus.read_lines("train")) if number % every == 0)
    more = RUNNING_TEXT if data.units != "byte" else {}
    train_tokenizer(sample, data, model, f"the training text of {corpus.name}", more=more)
    return Tokenizer.load(model)


def _make_sets(encoded: EncodedText, missing: dict[str, str], corpus: TextCorpus, progress: Progress) -> None:
    tokenizer = Tokenizer(encoded.tokenizer_model())
    long = {
        name: [t for t in (line.text.strip() for line in corpus.read_lines(name)) if len(t) >= SHORTEST]
        for name in missing
    }
    asked = {text for texts in long.values() for text in texts}
    seen = {text for text in (line.text.strip() for line in corpus.read_lines("train")) if text in asked}
    for name, set_digest in missing.items():
        with whole_folder(encoded.folder / "sets" / f"{name}-{set_digest}") as folder:
            writer = _encoded(folder, tokenizer, corpus.read_lines(name), progress, name, measured=True)
            files = describe_files(folder)
            again = {"lines": sum(text in seen for text in long[name]), "of": len(long[name])}
            write_json(folder / "facts.json", {"name": name, **_counts(writer), "seen_in_train": again, "files": files})


def _encoded(
    folder: Path, tokenizer: Tokenizer, lines: Iterator[Line], progress: Progress, what: str, *, measured: bool
) -> StreamWriter:
    writer = StreamWriter(folder, tokenizer, piece_dtype(tokenizer.vocab_size), _threads(), measured=measured)
    for chunk in _chunks(lines):
        writer.add(chunk)
        progress(f"encoding {what}", writer.lines, 0)
    if not writer.lines:
        raise UserError(f"The {what} text of this corpus is empty. Put text into its files, or leave them out.")
    writer.close()
    return writer


def _chunks(lines: Iterator[Line]) -> Iterator[list[Line]]:
    chunk: list[Line] = []
    size = 0
    for line in lines:
        chunk.append(line)
        size += len(line.text)
        if len(chunk) == CHUNK or size > CHUNK_CHARACTERS:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _counts(writer: StreamWriter) -> dict[str, int]:
    return {"lines": writer.lines, "bytes": writer.bytes, "characters": writer.characters, "pieces": writer.pieces}
