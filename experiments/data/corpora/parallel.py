"""A parallel corpus: its files, their content, and the digests that identify them. Imports no torch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Literal, Self

from experiments.config import DataConfig
from experiments.data.builtin.generate import generate, recipe_digest
from experiments.data.corpora.files import LONGEST_LINE, FileFacts, FilePair, Fingerprints, read_lines
from experiments.data.corpora.folder import find
from experiments.errors import UserError
from experiments.identity import digest


@dataclass(frozen=True)
class Corpus:
    """A source of sentence pairs. `train` and `dev` may join several files; every test set has a name."""

    name: str
    kind: Literal["builtin", "folder"]
    source: str  # language
    target: str
    train: tuple[FilePair, ...] = ()
    dev: tuple[FilePair, ...] = ()
    tests: Mapping[str, tuple[FilePair, ...]] = field(default_factory=dict)
    builtin_pairs: int = 0
    facts: Mapping[Path, FileFacts] = field(default_factory=dict)  # of the files, once `pinned`

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets that can be evaluated: "dev", then the test sets."""
        return ("dev", *self.tests)

    def files(self, set_name: str) -> tuple[FilePair, ...]:
        """The files of "train", "dev" or a test set."""
        return {"train": self.train, "dev": self.dev}.get(set_name) or self.tests[set_name]

    def read_pairs(self, set_name: str) -> Iterator[tuple[str, str]]:
        """The (source, target) lines of "train", "dev" or a test set, one at a time.

        Raises UserError for files that changed, and for a line of an evaluated set that is no sentence.
        """
        if self.kind == "builtin":
            pairs = generate(set_name, self.builtin_pairs)
            yield from pairs if self.source == "en" else ((t, s) for s, t in pairs)
            return
        for pair in self.files(set_name):
            lines = zip_longest(*(read_lines(path, self._sha256(path)) for path in (pair.source, pair.target)))
            for number, (source, target) in enumerate(lines, start=1):
                if source is None or target is None:
                    ended = pair.source if source is None else pair.target
                    raise UserError(
                        f"{ended} ends at line {number - 1} but its other side continues: they were changed "
                        "while they were read. Run it again when they are complete."
                    )
                if set_name != "train" and max(len(source), len(target)) > LONGEST_LINE:
                    place, line = max(((pair.source, source), (pair.target, target)), key=lambda side: len(side[1]))
                    raise UserError(
                        f"{place}, line {number} has {len(line):,} characters, more than a sentence has. Split it, or "
                        "leave the pair out."
                    )
                yield source, target

    def pinned(self, cache_dir: Path | None = None) -> Self:
        """This corpus fixed to the present content of its files: reading other content raises UserError."""
        if self.kind == "builtin":
            return self
        fingerprints = Fingerprints(cache_dir, self.facts)
        pairs = [pair for name in ("train", *self.sets) for pair in self.files(name)]
        facts = {path: fingerprints.facts(path) for pair in pairs for path in (pair.source, pair.target)}
        fingerprints.save()
        return replace(self, facts=facts)

    def _sha256(self, path: Path) -> str:
        return self.facts[path].sha256 if path in self.facts else ""

    def _count_pairs(self, set_name: str, fingerprints: Fingerprints) -> int:
        """Number of pairs of a set; checks its files completely (errors: see `training_digest`)."""
        if self.kind == "builtin":
            return self.builtin_pairs if set_name == "train" else sum(1 for _ in self.read_pairs(set_name))
        return sum(_checked(pair, fingerprints)[2] for pair in self.files(set_name))

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Read and check every file once; returns set → number of pairs. Raises UserError as `training_digest`."""
        fingerprints = Fingerprints(cache_dir, self.facts)
        counts = {name: self._count_pairs(name, fingerprints) for name in ("train", *self.sets)}
        fingerprints.save()
        return counts

    def training_digest(self, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of train and dev, and the direction; names and places of files do not matter.

        Raises UserError for a missing or empty file, for one that is not UTF-8, and for sides of unequal length.
        """
        return digest(
            {
                "direction": [self.source, self.target],
                **{name: self._content(name, cache_dir) for name in ("train", "dev")},
            }
        )

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of one evaluated set. Raises UserError as `training_digest`."""
        return digest({"direction": [self.source, self.target], "set": self._content(set_name, cache_dir)})

    def _content(self, set_name: str, cache_dir: Path | None) -> list[list[str]]:
        if self.kind == "builtin":
            return [[recipe_digest(self.builtin_pairs), set_name]]
        fingerprints = Fingerprints(cache_dir, self.facts)
        content = [list(_checked(pair, fingerprints)[:2]) for pair in self.files(set_name)]
        fingerprints.save()
        return content


def resolve(data: DataConfig) -> Corpus:
    """The corpus of a configuration, found by file names; does not read files.

    Raises UserError for missing folders or files, and for languages that the names do not determine.
    """
    if data.corpus == "builtin":
        return _builtin(data)
    folder = Path(data.corpus).expanduser()
    found = find(folder, data)
    name = folder.resolve().name
    return Corpus(name, "folder", found.source, found.target, found.train, found.dev, found.tests)


def _builtin(data: DataConfig) -> Corpus:
    """The generated corpus, in one of its two directions."""
    direction = (data.source or ("de" if data.target == "en" else "en"), data.target or "")
    direction = (direction[0], direction[1] or ("en" if direction[0] == "de" else "de"))
    if sorted(direction) != ["de", "en"]:
        raise UserError(
            f"The built-in corpus is English-German, but data.source and data.target request {direction[0]} to "
            f'{direction[1]}. Use "en" and "de" in either order, or your own folder as data.corpus.'
        )
    if data.train or data.dev or data.test not in ((), ("test",)):
        raise UserError(
            "data.train, data.dev and data.test name files of a corpus folder; the built-in corpus has its own "
            'sets ("dev", "test"). Leave them out, or name a folder as data.corpus (--corpus).'
        )
    return Corpus("builtin", "builtin", *direction, tests={"test": ()}, builtin_pairs=data.builtin_pairs)


def _checked(pair: FilePair, fingerprints: Fingerprints) -> tuple[str, str, int]:
    """Content hashes of both sides, and their number of lines."""
    source, target = fingerprints.facts(pair.source), fingerprints.facts(pair.target)
    if source.lines != target.lines:
        raise UserError(
            f"{pair.source} has {source.lines:,} line{'s' * (source.lines != 1)} but {pair.target} has "
            f"{target.lines:,}. Line n of one must "
            'translate line n of the other; lines end at "\\n" only. Align them, or remove the extra lines.'
        )
    return source.sha256, target.sha256, source.lines
