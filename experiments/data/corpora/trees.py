"""A corpus of trees: a sentence's words on one side, its tree as a line of symbols on the other. Imports no torch.

    train.mrg  dev.mrg  test*.mrg        or folders: train/  dev/  test*/, with everything below them

Endings: .mrg, .ptb, .parse, .tree or .trees, each plain or .gz. `data.train` and the like give other names: 02 … 21, 22
and 23 in a folder with the sections of the Wall Street Journal. Several names are joined; each for test is a set.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pydantic import Field

from experiments.config import MOST_GENERATED, DataConfig, Names
from experiments.data.corpora.files import FileFacts, Fingerprints, remember, remembered
from experiments.data.corpora.parallel import named_sets
from experiments.data.corpora.tree import Tree, cleaned, linearise, read_trees
from experiments.data.corpora.tree_grammar import HELD_OUT, generate_trees, recipe_digest
from experiments.errors import UserError
from experiments.identity import digest

# --- The `data` section of the parsing task: which trees, and how they become pieces


class TreeData(DataConfig):
    """Section 6.3. Defaults are the paper's for the Wall Street Journal alone."""

    corpus: str = Field("builtin", description='"builtin" (generated) or a folder with train, dev and test trees')
    train_extra: Names = Field((), description="further training trees, such as another parser's; names as in train")
    vocab_size: int = Field(16000, ge=16, description="word-pieces of the sentences; 32,000 with the extra trees")
    target_vocab_size: int = Field(512, ge=16, description="symbols of the trees: labels, their closings, tags")
    max_pieces: int = Field(
        512, ge=2, description="training trees with a longer side (EOS counted) are dropped and counted"
    )
    builtin_extra: int = Field(
        20000, ge=1, le=MOST_GENERATED, description='trees that the built-in corpus knows as "extra"'
    )


# --- The corpus


ENDINGS = (".mrg", ".ptb", ".parse", ".tree", ".trees")
_DEV_NAMES = ("dev", "val", "valid")
_EXTRA = "extra"  # what the built-in corpus calls its further training trees

Files = tuple[Path, ...]


@dataclass(frozen=True)
class TreeCorpus:
    """A corpus of trees. `train` includes `data.train_extra`; `builtin`, `extra`: numbers of generated trees."""

    name: str
    train: Files = ()
    dev: Files = ()
    tests: Mapping[str, Files] = field(default_factory=dict)
    builtin: int = 0
    extra: int = 0
    source: str = "words"
    target: str = "trees"
    facts: Mapping[Path, FileFacts] = field(default_factory=dict)  # of the files, once `pinned`

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets that can be evaluated: "dev", then the test sets."""
        return ("dev", *self.tests)

    def read_trees(self, set_name: str) -> Iterator[Tree]:
        """The trees in the form that is learnt: without root, empty words and function tags."""
        if self.builtin:
            yield from generate_trees(set_name, self.builtin)
            if set_name == "train":
                yield from generate_trees(_EXTRA, self.extra)
            return
        for path in self._files(set_name):
            sha256 = self.facts[path].sha256 if path in self.facts else ""
            yield from map(cleaned, read_trees(path, sha256))

    def read_pairs(self, set_name: str) -> Iterator[tuple[str, str]]:
        """(words, symbols), each separated by spaces. Raises UserError for a file without trees."""
        for number, tree in enumerate(self.read_trees(set_name), start=1):
            try:
                symbols = linearise(tree)
            except ValueError as error:
                raise UserError(f"{self.name}, {set_name}: tree {number}: {error}. Rename it in the file.") from None
            yield " ".join(tree.words), " ".join(symbols)

    def pinned(self, cache_dir: Path | None = None) -> Self:
        """This corpus fixed to the present content of its files: reading other content raises UserError."""
        if self.builtin:
            return self
        fingerprints = Fingerprints(cache_dir, self.facts)
        facts = {path: fingerprints.facts(path) for name in ("train", *self.sets) for path in self._files(name)}
        fingerprints.save()
        return replace(self, facts=facts)

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Read every tree once (files with known content are not read again); returns set → number of trees."""
        if self.builtin:
            return {"train": self.builtin + self.extra, **HELD_OUT}
        counts = _Counts(cache_dir, self.facts)
        found = {name: sum(map(counts.of, self._files(name))) for name in ("train", *self.sets)}
        counts.save()
        return found

    def training_digest(self, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of all training inputs. Raises UserError for unusable files."""
        return digest({"trees": {name: self._content(name, cache_dir) for name in ("train", "dev")}})

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of one evaluated set. Raises UserError for unusable files."""
        return digest({"trees": self._content(set_name, cache_dir)})

    def _files(self, set_name: str) -> Files:
        return {"train": self.train, "dev": self.dev}.get(set_name) or self.tests[set_name]

    def _content(self, set_name: str, cache_dir: Path | None) -> list[str]:
        if self.builtin:
            return [recipe_digest(self.builtin, self.extra), set_name]
        fingerprints = Fingerprints(cache_dir, self.facts)
        content = [fingerprints.facts(path).sha256 for path in self._files(set_name)]
        fingerprints.save()
        return content


class _Counts:
    """Number of trees in a file, remembered by content hash, because reading a treebank takes seconds."""

    def __init__(self, cache_dir: Path | None, pinned: Mapping[Path, FileFacts]) -> None:
        self._path = cache_dir / "trees.json" if cache_dir else None
        self._fingerprints = Fingerprints(cache_dir, pinned)
        self._known: dict[str, int] = remembered(self._path)

    def of(self, path: Path) -> int:
        content = self._fingerprints.facts(path).sha256
        if content not in self._known:
            self._known[content] = sum(1 for _ in read_trees(path, content))
        if not self._known[content]:
            raise UserError(f"{path} holds no tree. Leave the file out, or put trees in it: (S (NP …) (VP …)).")
        return self._known[content]

    def save(self) -> None:
        self._fingerprints.save()
        remember(self._path, self._known)


def resolve(data: TreeData) -> TreeCorpus:
    """The corpus of a configuration, found by file names. Raises UserError for missing files."""
    if data.source or data.target:
        raise UserError("data.source and data.target name languages; a corpus of trees has none. Leave them out.")
    return _builtin(data) if data.corpus == "builtin" else _folder(Path(data.corpus), data)


def _builtin(data: TreeData) -> TreeCorpus:
    if data.train or data.dev or data.test not in ((), ("test",)) or data.train_extra not in ((), (_EXTRA,)):
        raise UserError(
            "data.train, data.dev, data.test and data.train_extra name files of a folder; the built-in trees have the "
            f'sets "dev" and "test", and "{_EXTRA}" for data.train_extra. Leave the others out, or name a folder as '
            "data.corpus."
        )
    extra = data.builtin_extra if data.train_extra else 0
    return TreeCorpus("builtin", tests={"test": ()}, builtin=data.builtin_pairs, extra=extra)


def _folder(folder: Path, data: TreeData) -> TreeCorpus:
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(
            f'The corpus folder {folder} {what}. data.corpus (--corpus) is "builtin" or a folder with train and dev '
            f"trees: files such as train{ENDINGS[0]}, or folders of such files."
        )
    dev = data.dev or (next((name for name in _DEV_NAMES if _find(folder, name)), "dev"),)
    return TreeCorpus(
        folder.resolve().name,
        train=_all(folder, data.train or ("train",), "data.train") + _all(folder, data.train_extra, "data.train_extra"),
        dev=_all(folder, dev, "data.dev"),
        tests={
            key: _all(folder, (name,), "data.test")
            for key, name in named_sets(data.test or _test_names(folder)).items()
        },
    )


def _all(folder: Path, names: Sequence[str], setting: str) -> Files:
    found: list[Path] = []
    for name in names:
        files = _find(folder, name)
        if not files:
            there = ", ".join(sorted(path.name for path in folder.iterdir())[:24]) or "nothing"
            raise UserError(
                f"{folder} has no {name}{{{','.join(ENDINGS)}}} (plain or .gz) and no folder {name} with such files. "
                f"There is: {there}. Name others with {setting}."
            )
        found += files
    return tuple(found)


def _find(folder: Path, name: str) -> list[Path]:
    """The file with a name, or all files of trees in the folder of that name, sorted by path."""
    place = folder / name
    if place.is_dir():
        return sorted(path for path in place.rglob("*") if _stem(path) is not None and path.is_file())
    if not place.parent.is_dir():
        return []
    return sorted(path for path in place.parent.iterdir() if _stem(path) == place.name and path.is_file())


def _stem(path: Path) -> str | None:
    """The name without its ending; None if it is not a file of trees."""
    name = path.name.removesuffix(".gz")
    ending = next((ending for ending in ENDINGS if name.endswith(ending)), None)
    return name.removesuffix(ending) if ending else None


def _test_names(folder: Path) -> list[str]:
    names = {path.name if path.is_dir() else _stem(path) for path in sorted(folder.glob("test*"))}
    return sorted(name for name in names if name and _find(folder, name))
