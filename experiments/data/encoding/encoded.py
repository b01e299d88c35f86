"""Read an encoded corpus: tokenizers, pieces and facts. prepare.py writes encoded corpora. Imports no torch.

<root>/<digest>/facts.json                     counts of rows read, kept and dropped; rates; hashes of the tokenizers
               /tokenizer.model                or source.model and target.model for separate vocabularies
               /train/                         the pieces of the training set, in the format of sides.py
               /sets/<name>-<set digest>/      an evaluated set: pieces, facts.json; for pairs source.txt, target.txt
"""

import glob
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.config.data import DataConfig
from experiments.data.corpora.corpus import SIDES
from experiments.data.corpora.files import written_lines
from experiments.data.encoding.sides import Side, Sides, piece_dtype
from experiments.data.encoding.tokenizer import Tokenizer, tokenizer_settings
from experiments.errors import Damaged, UserError
from experiments.identity import digest
from experiments.store.checksummed import check_file, read_json

FORMAT = 2  # version of the folder's format; part of the digest


def encoded_digest(training_digest: str, data: DataConfig, shared: bool = True) -> str:
    """Return the name of an encoded corpus: a digest of its text, tokenizer settings, `max_pieces` and format."""
    return digest(
        {
            "format": FORMAT,
            "corpus": training_digest,
            "tokenizer": tokenizer_settings(data, shared),
            "max_pieces": data.max_pieces,
        }
    )


def model_names(shared: bool) -> tuple[str, str]:
    """Return the file names of the source and target tokenizers."""
    return ("tokenizer.model", "tokenizer.model") if shared else ("source.model", "target.model")


@dataclass(frozen=True)
class EncodedSet:
    """An evaluated set: all its rows in order, as pieces. Sentence pairs are also stored as text."""

    name: str
    digest: str
    sides: Sides
    facts: dict[str, Any]
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()  # the reference text

    def first(self, count: int | None) -> "EncodedSet":
        """Return the first `count` lines of the set, or the whole set if `count` is None."""
        sides = {name: side.first(count) for name, side in self.sides.items()}
        return replace(self, sides=sides, source=self.source[:count], target=self.target[:count])


class EncodedCorpus:
    """An encoded corpus in a store, opened for reading."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self._files = facts["files"]  # sizes and hashes
        self.facts = {name: value for name, value in facts.items() if name != "files"}
        self.digest = folder.name
        self.shared = bool(facts["shared"])

    @cached_property
    def train(self) -> Sides:
        """The training rows. The first access checks the hashes of their files, and raises Damaged if one differs."""
        self._check(self.folder, self._files)
        return self._sides(self.folder / "train")

    @cached_property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """The source and target tokenizers: one object for a shared vocabulary. Raises Damaged for changed files."""
        source, target = model_names(self.shared)
        first = Tokenizer(self.tokenizer_model(source))
        return first, first if self.shared else Tokenizer(self.tokenizer_model(target))

    def tokenizer_model(self, name: str) -> bytes:
        """Return the bytes of a tokenizer file. Raises Damaged if it is not the tokenizer that encoded this corpus."""
        path = self.folder / name
        try:
            model = path.read_bytes()
        except OSError as error:
            raise Damaged(f"{path} cannot be read ({error.strerror}). {self._redo}") from None
        if hashlib.sha256(model).hexdigest() != self.facts["tokenizer"]["sha256"][name]:
            raise Damaged(
                f"{path} is not the tokenizer that encoded this corpus: it was changed or damaged. {self._redo}"
            )
        return model

    def longest(self, name: str, set_digest: str = "") -> int:
        """Return the length in pieces, with EOS, of the longest source or target row.

        name: "train" or a prepared set. This function reads only the offsets, and checks no hashes.
        """
        folder = self.folder / ("train" if name == "train" else f"sets/{name}-{set_digest}")
        return max(int(side.lengths.max(initial=0)) for side in self._sides(folder).values())

    def set_digests(self, name: str) -> list[str]:
        """Return the digests of the prepared sets with this name. There are several if the set's files have changed."""
        folders = (self.folder / "sets").glob(f"{glob.escape(name)}-{'[0-9a-f]' * 16}")
        return sorted(folder.name.removeprefix(f"{name}-") for folder in folders)

    def set(self, name: str, set_digest: str | None = None) -> EncodedSet:
        """Return a prepared set. The digest is optional if only one set has the name.

        Raises UserError if the set was not prepared, Damaged if its files have changed since, and ValueError if several
        sets have the name and no digest is given.
        """
        there = self.set_digests(name)
        if set_digest is None and len(there) > 1:
            raise ValueError(f"several sets have the name {name}. Give one of the digests {', '.join(there)}")
        if (set_digest or (there or [""])[0]) not in there:
            raise UserError(
                f'The set "{name}" is not prepared in {self.folder}, or its files have changed since. '
                "`ablations run` or `evaluate` prepares it."
            )
        chosen = set_digest or there[0]
        folder = self.folder / "sets" / f"{name}-{chosen}"
        facts = read_json(folder / "facts.json")
        if facts is None:
            raise Damaged(f"{folder} is damaged: its facts.json is missing. {self._redo}")
        self._check(folder, facts.pop("files"))
        sides = self._sides(folder)
        texts = {side: tuple(written_lines(folder / f"{side}.txt")) for side in sides if SIDES[0] in sides}
        if any(len(text) != len(sides[side]) for side, text in texts.items()):
            raise Damaged(f"{folder} is damaged: the numbers of texts and pieces differ. {self._redo}")
        return EncodedSet(name, chosen, sides, facts, **texts)

    def _sides(self, folder: Path) -> Sides:
        return {side: Side(folder, side, piece_dtype(size)) for side, size in self.facts["vocab_size"].items()}

    def _check(self, folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
        """Raise Damaged if a file has changed. Each version of a file is hashed once per process."""
        for name, written in files.items():
            try:
                version = _version(folder / name)
                if version not in _checked:
                    check_file(folder / name, written)
                    _checked.add(version)
            except Damaged as damage:
                raise Damaged(f"The encoded corpus in {folder} is damaged: {damage}. {self._redo}") from None

    @property
    def _redo(self) -> str:
        return f"Delete {self.folder}: the next run creates it again."


_checked: set[tuple[object, ...]] = set()  # file versions that this process has checked


def _version(path: Path) -> tuple[object, ...]:
    try:
        status = path.stat()
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def open_encoded(root: Path, digest: str) -> EncodedCorpus:
    """Open an encoded corpus that `prepare` wrote.

    Raises UserError if it is missing or incomplete, and Damaged if the folder contains another corpus.
    """
    folder = root / digest
    facts = read_json(folder / "facts.json")
    if facts is None:
        raise UserError(f"There is no encoded corpus {folder}. `ablations run` prepares it.")
    if facts["digest"] != digest:
        raise Damaged(
            f"{folder} holds another encoded corpus, {facts['digest']}. Delete it: the next run creates it again."
        )
    return EncodedCorpus(folder, facts)
