"""The base class of corpora, and functions that find their sets and files. Imports no torch.

A corpus has text in named sets, read from files or generated. Parallel text (parallel.py) has pairs of lines. The
corpora of other tasks may have one side.
"""

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from experiments.data.corpora.files import FileFacts, Fingerprints
from experiments.errors import UserError
from experiments.identity import digest
from experiments.messages import some_names

SIDES = ("source", "target")
DEV_NAMES = ("dev", "val", "valid")
SHOWN = 24  # maximum number of names listed in a message

Files = tuple[Path, ...]


@dataclass(frozen=True)
class Corpus(ABC):
    """A corpus with named sets: "train", "dev" and test sets. Each row of a set has one line per side.

    `source` and `target` are the names of the sides, for instance the languages. Running text has no source.
    """

    sides: ClassVar[tuple[str, ...]] = SIDES

    name: str  # name for messages
    source: str = ""
    target: str = ""
    train: tuple[Any, ...] = ()  # files: paths, or pairs of them
    dev: tuple[Any, ...] = ()
    tests: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    generated: int = 0  # number of rows of "train" to generate; 0: the corpus is read from files
    facts: Mapping[Path, FileFacts] = field(default_factory=dict)  # hashes and line counts of a pinned corpus's files
    raw: bool = False  # whether the files may contain bytes that are not UTF-8

    @property
    def sets(self) -> tuple[str, ...]:
        """The names of the sets that can be evaluated: "dev", then the test sets."""
        return ("dev", *self.tests)

    @abstractmethod
    def read(self, set_name: str) -> Iterator[Any]:
        """Yield the rows of "train", "dev" or a test set. Raises UserError for files that changed."""

    def files(self, set_name: str) -> tuple[Any, ...]:
        """Return the files of "train", "dev" or a test set. A file may be a path or a pair of paths."""
        return {"train": self.train, "dev": self.dev}.get(set_name) or self.tests[set_name]

    def paths(self, set_name: str) -> Files:
        """Return the paths of all files of a set."""
        return self.files(set_name)

    def pinned(self, cache_dir: Path | None = None) -> Self:
        """Return this corpus with the present hashes of its files. Reading a file that has changed raises UserError.

        The encoded content therefore always matches the digest, even if a file is edited while it is read.
        """
        if self.generated:
            return self
        with self.fingerprints(cache_dir) as known:
            paths = (path for name in ("train", *self.sets) for path in self.paths(name))
            return replace(self, facts={path: known.facts(path) for path in paths})

    def fingerprints(self, cache_dir: Path | None) -> Fingerprints:
        """Return the fingerprints of the files, cached in `cache_dir`."""
        return Fingerprints(cache_dir, self.facts, raw=self.raw)

    @abstractmethod
    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Check every file and return the number of rows of each set. Raises UserError for unusable files.

        The rows of running text are not counted. For running text, the dict is empty.
        """

    def training_digest(self, cache_dir: Path | None = None) -> str:
        """Return 16 hex digits that identify the content of train and dev, but not the names or paths of files.

        Raises UserError if a file is missing, empty or not UTF-8.
        """
        return self._digest({name: self._content(name, cache_dir) for name in ("train", "dev")})

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """Return 16 hex digits that identify the content of an evaluated set. Raises UserError as `training_digest`."""
        return self._digest({"set": self._content(set_name, cache_dir)})

    def sha256(self, path: Path) -> str:
        """Return the hash that a file must have, or "" if the corpus is not pinned."""
        return self.facts[path].sha256 if path in self.facts else ""

    def _digest(self, content: Mapping[str, Any]) -> str:
        """Return the digest of the sets' content and of everything else that determines the rows."""
        return digest(content)

    def _content(self, set_name: str, cache_dir: Path | None) -> list[Any]:
        """Return the recipe of a generated set (see `_recipe`), or the hashes of a set's files."""
        if self.generated:
            return self._recipe(set_name)
        with self.fingerprints(cache_dir) as known:
            return [self._content_of(file, known) for file in self.files(set_name)]

    @abstractmethod
    def _recipe(self, set_name: str) -> list[Any]:
        """Return everything that determines the rows of a generated set."""

    def _content_of(self, file: Any, known: Fingerprints) -> Any:
        return known.facts(file).sha256


def select_sets(corpus: Corpus, names: Sequence[str]) -> tuple[str, ...]:
    """Return the sets that `evaluation.sets` names, each once, in the given order. "test" means all test sets.

    Raises UserError for an unknown name. The message suggests similar names.
    """
    chosen: list[str] = []
    for name in names:
        tests = corpus.sets[1:]
        if name == "test" and tests:
            chosen += tests
        elif name in corpus.sets:
            chosen.append(name)
        else:
            known = difflib.get_close_matches(name, corpus.sets, n=3, cutoff=0.4) or corpus.sets
            raise UserError(
                f'evaluation.sets names "{name}", but the corpus {corpus.name} has no such set. '
                f"It has: {', '.join([*known, *(s for s in corpus.sets if s not in known)])}."
            )
    return tuple(dict.fromkeys(chosen))


def named_sets(names: Sequence[str]) -> dict[str, str]:
    """Return a mapping from the name of each test set, without its folder, to its entry in `data.test`.

    Raises UserError if two sets have the same name, or if a test set is named "dev" or "train".
    """
    named: dict[str, str] = {}
    for name in names:
        key = Path(name).name
        if key in ("dev", "train"):
            raise UserError(f'data.test names "{name}", but another set has the name "{key}". Rename the files.')
        if named.setdefault(key, name) != name:
            raise UserError(f"data.test: {named[key]} and {name} are both the set {key}. Rename the files of one.")
    return named


def refuse_no_folder(folder: Path, expected: str) -> None:
    """Raise UserError unless the path of a corpus is a folder. expected: text for the message on valid folders."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f'The corpus folder {folder} {what}. data.corpus (--corpus) is "builtin" or {expected}.')


def files_in(folder: Path) -> str:
    """Return the names of a folder's files for a message."""
    return some_names(sorted(path.name for path in folder.iterdir() if path.is_file()), SHOWN) or "none"
