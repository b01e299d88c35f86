"""An encoded corpus in the store: tokenizers, pieces, facts. prepare.py writes it. Imports no torch.
<root>/<digest>/facts.json                     what was read, kept, dropped; rates; sums of the tokenizers
               /tokenizer.model                or source.model and target.model where vocabularies are separate
               /train/                         sides.py says how pieces are laid out; running text has one side
               /sets/<name>-<set digest>/      an evaluated set: pieces, facts.json; of pairs source.txt, target.txt
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

FORMAT = 2  # format of the folder; part of the digest


def encoded_digest(training_digest: str, data: DataConfig, shared: bool = True) -> str:
    """The name of an encoded corpus: digest of its content, tokenizer settings, dropping rule and format."""
    return digest(
        {
            "format": FORMAT,
            "corpus": training_digest,
            "tokenizer": tokenizer_settings(data, shared),
            "max_pieces": data.max_pieces,
        }
    )


def model_names(shared: bool) -> tuple[str, str]:
    """File names of the source and target tokenizers."""
    return ("tokenizer.model", "tokenizer.model") if shared else ("source.model", "target.model")


@dataclass(frozen=True)
class EncodedSet:
    """An evaluated set: all its rows, in order, as pieces; of pairs also as text."""

    name: str
    digest: str
    sides: Sides
    facts: dict[str, Any]
    source: tuple[str, ...] = ()
    target: tuple[str, ...] = ()  # the reference text

    def first(self, count: int | None) -> "EncodedSet":
        """The set with so many lines of text, the first ones; None: itself."""
        sides = {name: side.first(count) for name, side in self.sides.items()}
        return replace(self, sides=sides, source=self.source[:count], target=self.target[:count])


class EncodedCorpus:
    """The encoded corpus as a run reads it."""

    def __init__(self, folder: Path, facts: dict[str, Any]) -> None:
        self.folder = folder
        self._files = facts["files"]  # sizes and hashes
        self.facts = {name: value for name, value in facts.items() if name != "files"}
        self.digest = folder.name
        self.shared = bool(facts["shared"])

    @cached_property
    def train(self) -> Sides:
        """The training rows; their files are hashed once, here. Raises Damaged."""
        self._check(self.folder, self._files)
        return self._sides(self.folder / "train")

    @cached_property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Source and target tokenizers, one object for a shared vocabulary; checked by the facts. Raises Damaged."""
        source, target = model_names(self.shared)
        first = Tokenizer(self.tokenizer_model(source))
        return first, first if self.shared else Tokenizer(self.tokenizer_model(target))

    def tokenizer_model(self, name: str) -> bytes:
        """The bytes of a tokenizer file that encoded this corpus. Raises Damaged."""
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
        """Pieces of the longest line of either side of "train" or of a prepared set, EOS counted.

        Reads only the offsets: no pieces, no hashes.
        """
        folder = self.folder / ("train" if name == "train" else f"sets/{name}-{set_digest}")
        return max(int(side.lengths.max(initial=0)) for side in self._sides(folder).values())

    def set_digests(self, name: str) -> list[str]:
        """Digests of the prepared sets with this name; one, unless the set's files have changed."""
        folders = (self.folder / "sets").glob(f"{glob.escape(name)}-{'[0-9a-f]' * 16}")
        return sorted(folder.name.removeprefix(f"{name}-") for folder in folders)

    def set(self, name: str, set_digest: str | None = None) -> EncodedSet:
        """A prepared set. The digest is optional if only one set has the name.

        Raises UserError if the set was not prepared, ValueError if the digest is needed.
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
        """Raises Damaged for changed files; each file is hashed once per process."""
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


_checked: set[tuple[object, ...]] = set()  # versions of files that this process has checked


def _version(path: Path) -> tuple[object, ...]:
    try:
        status = path.stat()
    except OSError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error
    return str(path), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def open_encoded(root: Path, digest: str) -> EncodedCorpus:
    """Open an encoded corpus of `prepare`. Raises UserError if it is missing or incomplete."""
    folder = root / digest
    facts = read_json(folder / "facts.json")
    if facts is None:
        raise UserError(f"There is no encoded corpus {folder}. `ablations run` prepares it.")
    if facts["digest"] != digest:
        raise Damaged(
            f"{folder} holds another encoded corpus, {facts['digest']}. Delete it: the next run creates it again."
        )
    return EncodedCorpus(folder, facts)
