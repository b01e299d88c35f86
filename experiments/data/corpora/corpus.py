"""A corpus: text in named sets, read from files or generated, and the digests that identify it. Imports no torch.

Parallel text (parallel.py) has pairs of lines; the corpora of other tasks may have one side.
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

SIDES = ("source", "target")
DEV_NAMES = ("dev", "val", "valid")
SHOWN = 24  # names listed in a message

Files = tuple[Path, ...]


@dataclass(frozen=True)
class Corpus(ABC):
    """Rows of text in named sets: "train", "dev" and test sets, each with its files. A row has a line for each side.

    `source` and `target` name the sides, for instance the languages; running text has no source.
    """

    sides: ClassVar[tuple[str, ...]] = SIDES

    name: str  # in messages
    source: str = ""
    target: str = ""
    train: tuple[Any, ...] = ()  # files: paths, or pairs of them
    dev: tuple[Any, ...] = ()
    tests: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    generated: int = 0  # rows of "train" that are generated; 0: all is read from files
    facts: Mapping[Path, FileFacts] = field(default_factory=dict)  # of the files, once `pinned`
    raw: bool = False  # the files may hold any bytes

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets that can be evaluated: "dev", then the test sets."""
        return ("dev", *self.tests)

    @abstractmethod
    def read(self, set_name: str) -> Iterator[Any]:
        """The rows of "train", "dev" or a test set, one at a time. Raises UserError for files that changed."""

    def files(self, set_name: str) -> tuple[Any, ...]:
        """The files of "train", "dev" or a test set."""
        return {"train": self.train, "dev": self.dev}.get(set_name) or self.tests[set_name]

    def paths(self, set_name: str) -> Files:
        """Each of these files."""
        return self.files(set_name)

    def pinned(self, cache_dir: Path | None = None) -> Self:
        """This corpus fixed to the present content of its files: reading other content raises UserError.

        So the encoded content is the one that the digest names, even if someone edits the files meanwhile.
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
        """Read and check every file once; returns set → number of pairs. Raises UserError for unusable files."""

    def training_digest(self, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of train and dev; names and places of files do not matter.

        Raises UserError for a missing or empty file, and for one that is not UTF-8.
        """
        return self._digest({name: self._content(name, cache_dir) for name in ("train", "dev")})

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of one evaluated set. Raises UserError as `training_digest`."""
        return self._digest({"set": self._content(set_name, cache_dir)})

    def sha256(self, path: Path) -> str:
        """The hash that a file must have; "" if the corpus is not pinned."""
        return self.facts[path].sha256 if path in self.facts else ""

    def _digest(self, content: Mapping[str, Any]) -> str:
        """Return the digest of the sets' content and of everything else that determines the rows."""
        return digest(content)

    def _content(self, set_name: str, cache_dir: Path | None) -> list[Any]:
        """The recipe of a generated set, or the content of a set's files."""
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
    """Resolve `evaluation.sets`: "dev", names of test sets, "test" for all of them; each once, in this order.

    Raises UserError for an unknown name, with the nearest names.
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
    """Each test set's own name → what `data.test` calls it. Raises UserError for two sets of one name."""
    named: dict[str, str] = {}
    for name in names:
        key = Path(name).name
        if key in ("dev", "train"):
            raise UserError(f'data.test names "{name}", but another set has the name "{key}". Rename the files.')
        if named.setdefault(key, name) != name:
            raise UserError(f"data.test: {named[key]} and {name} are both the set {key}. Rename the files of one.")
    return named


def listed(names: Sequence[str]) -> str:
    """Names for a message, the first ones if there are many."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def refuse_no_folder(folder: Path, expected: str) -> None:
    """Raises UserError for a corpus that is no folder. expected: what data.corpus may be besides "builtin"."""
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "does not exist"
        raise UserError(f'The corpus folder {folder} {what}. data.corpus (--corpus) is "builtin" or {expected}.')


def files_in(folder: Path) -> str:
    """The names of a folder's files, for a message."""
    return listed(sorted(path.name for path in folder.iterdir() if path.is_file())) or "none"
