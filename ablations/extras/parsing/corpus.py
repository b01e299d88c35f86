"""A corpus of trees: the source is the words of a sentence, the target its tree as a line of symbols. Imports no torch.

    train.mrg  dev.mrg  test*.mrg        or folders with subfolders: train/  dev/  test*/

File names end in .mrg, .ptb, .parse, .tree or .trees; each file may be compressed (.gz). `data.train`, `data.dev` and
`data.test` give other names, such as 02 … 21, 22 and 23 for the sections of the Wall Street Journal. The files of
several names in `data.train` or `data.dev` are joined. Each name in `data.test` is a separate set.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from ablations.extras.parsing.generated import HELD_OUT, generate_trees, recipe_digest
from ablations.extras.parsing.linear import linearise
from ablations.extras.parsing.tree import Tree, cleaned
from ablations.extras.parsing.treebank import read_trees
from experiments.config.data import MOST_GENERATED, DataConfig
from experiments.config.field_types import Names
from experiments.data.corpora.corpus import DEV_NAMES, SHOWN, Corpus, Files, named_sets, refuse_no_folder
from experiments.errors import UserError
from experiments.identity import digest
from experiments.messages import some_names
from experiments.store.user_cache import UserCache


class TreeData(DataConfig):
    """Settings of the trees (section 6.3). The defaults are the paper's for the Wall Street Journal alone."""

    corpus: str = Field("builtin", description='"builtin" (generated) or a folder with train, dev and test trees')
    train_extra: Names = Field((), description="further training trees, such as another parser's; names as in train")
    vocab_size: int = Field(
        16000, ge=16, description="size of the vocabulary of sentences in pieces; 32,000 with the extra trees"
    )
    target_vocab_size: int = Field(
        512, ge=16, description="size of the vocabulary of trees: labels, their closings, tags"
    )
    max_pieces: int = Field(
        512, ge=2, description="training trees with a longer side (EOS counted) are dropped and counted"
    )
    builtin_extra: int = Field(
        20000, ge=1, le=MOST_GENERATED, description='number of trees that the built-in corpus generates as "extra"'
    )

    @property
    def target_symbols(self) -> int:
        return self.target_vocab_size


ENDINGS = (".mrg", ".ptb", ".parse", ".tree", ".trees")
_EXTRA = "extra"  # name of the additional training trees of the built-in corpus


@dataclass(frozen=True)
class TreeCorpus(Corpus):
    """A corpus of trees. `train` includes `data.train_extra`."""

    source: str = "words"
    target: str = "trees"
    extra: int = 0  # number of additional generated training trees

    def read_trees(self, set_name: str) -> Iterator[Tree]:
        """Yield the trees of a set without root, empty words and function tags."""
        if self.generated:
            yield from generate_trees(set_name, self.generated)
            if set_name == "train":
                yield from generate_trees(_EXTRA, self.extra)
            return
        for path in self.files(set_name):
            yield from map(cleaned, read_trees(path, self.sha256(path)))

    def source_spans(self, set_name: str) -> Iterator[list[tuple[int, int]]]:
        """Yield the brackets of each tree as pairs (first word, last word + 1)."""
        for tree in self.read_trees(set_name):
            yield [(bracket.start, bracket.end) for bracket in tree.brackets]

    def read(self, set_name: str) -> Iterator[tuple[str, str]]:
        """Yield a line of words and a line of symbols for each tree.

        Raises UserError for a label that `linearise` cannot write.
        """
        for number, tree in enumerate(self.read_trees(set_name), start=1):
            try:
                symbols = linearise(tree)
            except ValueError as error:
                raise UserError(f"{self.name}, {set_name}: tree {number}: {error}. Rename it in the file.") from None
            yield " ".join(tree.words), " ".join(symbols)

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Read every tree and return the number of trees of each set. Raises UserError for a file without trees.

        A cache holds the number of trees by content hash, because reading a treebank takes seconds.
        """
        if self.generated:
            return {"train": self.generated + self.extra, **HELD_OUT}
        counts = dict.fromkeys(("train", *self.sets), 0)
        with self.fingerprints(cache_dir) as fingerprints, UserCache("trees-1") as known:
            for name in counts:
                for path in self.files(name):
                    content = fingerprints.facts(path).sha256
                    if (count := known.get(content)) is None:
                        known.put(content, count := sum(1 for _ in read_trees(path, content)))
                    if not count:
                        raise UserError(
                            f"{path} holds no tree. Leave the file out, or put trees in it: (S (NP …) (VP …))."
                        )
                    counts[name] += count
        return counts

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """Return the digest of a set, as in `Corpus`.

        Generated dev and test trees do not depend on the number of training trees, and so their digests do not. Rows
        with different numbers of training trees can therefore be compared.
        """
        if self.generated and set_name in HELD_OUT:
            return self._digest({"set": [recipe_digest(0, 0), set_name]})
        return super().set_digest(set_name, cache_dir)

    def _digest(self, content: Mapping[str, Any]) -> str:
        return digest({"trees": content.get("set", content)})

    def _recipe(self, set_name: str) -> list[Any]:
        return [recipe_digest(self.generated, self.extra), set_name]


def resolve(data: TreeData) -> TreeCorpus:
    """Return the corpus of a configuration. Raises UserError for missing files."""
    if data.source or data.target:
        raise UserError("data.source and data.target name languages, but a corpus of trees has none. Leave them out.")
    if data.builtin_version != 1:
        raise UserError("data.builtin_version applies only to sentence pairs. Leave it out.")
    return _builtin(data) if data.corpus == "builtin" else _folder(Path(data.corpus), data)


def _builtin(data: TreeData) -> TreeCorpus:
    if data.train or data.dev or data.test not in ((), ("test",)) or data.train_extra not in ((), (_EXTRA,)):
        raise UserError(
            "data.train, data.dev, data.test and data.train_extra name files of a folder; the built-in trees have the "
            f'sets "dev" and "test", and "{_EXTRA}" for data.train_extra. Leave the others out, or name a folder as '
            "data.corpus."
        )
    extra = data.builtin_extra if data.train_extra else 0
    return TreeCorpus("builtin", tests={"test": ()}, generated=data.builtin_pairs, extra=extra)


def _folder(folder: Path, data: TreeData) -> TreeCorpus:
    refuse_no_folder(folder, f"a folder with train and dev trees: files such as train{ENDINGS[0]}, or folders of them")
    dev = data.dev or (next((name for name in DEV_NAMES if _find(folder, name)), "dev"),)
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
    paths: list[Path] = []
    for name in names:
        files = _find(folder, name)
        if not files:
            there = some_names(sorted(path.name for path in folder.iterdir()), SHOWN) or "nothing"
            raise UserError(
                f"{folder} has no {name}{{{','.join(ENDINGS)}}} (plain or .gz) and no folder {name} with such files. "
                f"There is: {there}. Name others with {setting}."
            )
        paths += files
    return tuple(paths)


def _find(folder: Path, name: str) -> list[Path]:
    """Return the file of trees called `name`, or all files of trees below the folder `name`, sorted by path."""
    place = folder / name
    if place.is_dir():
        return sorted(path for path in place.rglob("*") if _stem(path) is not None and path.is_file())
    if not place.parent.is_dir():
        return []
    return sorted(path for path in place.parent.iterdir() if _stem(path) == place.name and path.is_file())


def _stem(path: Path) -> str | None:
    """Return the file name without its ending, or None if the ending is not one of a file of trees."""
    name = path.name.removesuffix(".gz")
    ending = next((ending for ending in ENDINGS if name.endswith(ending)), None)
    return name.removesuffix(ending) if ending else None


def _test_names(folder: Path) -> list[str]:
    names = {path.name if path.is_dir() else _stem(path) for path in sorted(folder.glob("test*"))}
    return sorted(name for name in names if name and _find(folder, name))
