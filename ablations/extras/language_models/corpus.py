"""A corpus of running text: its lines, the starts of documents, and the digests that identify it. Imports no torch.

In a folder, each set has its own files. A single file is split by lines: the last 5 % are the test set, and the 5 %
before them are dev.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field

from experiments.config.data import DataConfig
from experiments.config.field_types import Names
from experiments.data.corpora.builtin import generate, recipe_digest
from experiments.data.corpora.corpus import Corpus, Files, files_in, refuse_no_folder
from experiments.data.corpora.files import read_raw
from experiments.errors import UserError
from experiments.identity import digest
from experiments.messages import number


class TextData(DataConfig):
    """Settings of running text. The pieces can represent any text: unknown characters are spelt in bytes."""

    running_text: ClassVar[bool] = True

    corpus: str = Field(
        "builtin", description='"builtin" (generated), a folder with train*.txt, dev*.txt …, or a file, which is split'
    )
    train: Names = Field((), description="names or patterns of training files; train*.txt if unset")
    dev: Names = Field((), description="names of files of the development set; dev*.txt or val*.txt if unset")
    test: Names = Field((), description="names of test files, one set each; test*.txt if unset")
    vocab_size: int = Field(8000, ge=16, description="size of the vocabulary in pieces; char and byte do not use it")
    units: Literal["bpe", "unigram", "char", "byte"] = Field(
        "bpe", description="kind of pieces: learnt by BPE or a unigram model, characters, bytes"
    )
    window: int = Field(256, ge=2, description="number of pieces that the network sees at once")
    documents: Literal["file", "line", "blank_line"] = Field(
        "file", description="documents: files, lines, or texts between blank lines; EOS is put before and after each"
    )
    mix_documents: bool = Field(True, description="whether windows may continue into the next document")


# Settings that a language model does not read, and the kind of data that they belong to.
UNREAD = {
    "data.source": "languages",
    "data.target": "languages",
    "data.max_pieces": "pairs of sentences",
    "data.builtin_version": "pairs of sentences",
}


PATTERNS = {"train": ("train*.txt",), "dev": ("dev*.txt", "val*.txt"), "test": ("test*.txt",)}


def find(folder: Path, data: TextData) -> tuple[Files, Files, dict[str, Files]]:
    """Return the files of train, of dev, and of each test set by name. Raises UserError for missing files."""
    refuse_no_folder(folder, "a folder with train*.txt and dev*.txt, or one file of text, which is split")
    train, dev = (_files(folder, name, getattr(data, name)) for name in ("train", "dev"))
    tests: dict[str, Files] = {}
    for path in _matching(folder, "test", data.test or PATTERNS["test"]):
        first = tests.setdefault(_stem(path), (path,))[0]
        if first != path:
            both = f"{first.relative_to(folder)} and {path.relative_to(folder)}"
            raise UserError(f"data.test: {both} are both the set {_stem(path)}. Rename one of them.")
    if data.test and not tests:
        raise _missing(folder, "test", data.test)
    if clash := {"train", "dev"} & set(tests):
        raise UserError(f"data.test names a file {clash.pop()}, which is the name of another set. Rename it.")
    return train, dev, tests


def _files(folder: Path, name: str, given: Sequence[str]) -> Files:
    for patterns in [given] if given else [(pattern,) for pattern in PATTERNS[name]]:
        if files := _matching(folder, name, patterns):
            return files
    raise _missing(folder, name, given or PATTERNS[name])


def _matching(folder: Path, name: str, patterns: Sequence[str]) -> Files:
    """Return the files whose names match a pattern, with or without .gz, in the order of patterns and names.

    Raises UserError for an invalid pattern, and if a file exists both plain and as .gz.
    """
    paths: dict[Path, None] = {}
    for pattern in patterns:
        for one in (pattern, f"{pattern}.gz"):
            try:
                paths |= dict.fromkeys(path for path in sorted(folder.glob(one)) if path.is_file())
            except (ValueError, NotImplementedError) as error:
                raise UserError(
                    f"data.{name} = {pattern!r} is no pattern of names in {folder} ({error}). Write a name such as "
                    "news.txt, or a pattern such as news*.txt."
                ) from None
    for path in paths:
        if (packed := path.with_name(f"{path.name}.gz")) in paths:
            raise UserError(f"Both {path} and {packed} exist. Remove one of them.")
    return tuple(paths)


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").removesuffix(".txt")


def _missing(folder: Path, name: str, patterns: Sequence[str]) -> UserError:
    return UserError(
        f"{folder} has no {' or '.join(patterns)} (plain or .gz). Files there: {files_in(folder)}. Name others with "
        f"data.{name}, for instance --set data.{name}=NAME, or give one file of text as the corpus: it is split."
    )


LONGEST = 1 << 14  # characters of a line; longer lines are read in parts
HELD_OUT = 20  # in a single file, dev and test have 1 / 20 of the lines each


class TextLine(NamedTuple):
    """A line with its end-of-line character, or a part of a long line."""

    text: str
    starts: bool  # whether the line begins a document


@dataclass(frozen=True)
class TextCorpus(Corpus):
    """A corpus of text in named sets.

    raw: whether bytes that are not UTF-8 are allowed. They become lone surrogates (PEP 383).
    """

    sides: ClassVar[tuple[str, ...]] = ("target",)

    documents: str = "file"  # the setting data.documents
    split: bool = False  # True if all sets are parts of one file

    def read(self, set_name: str) -> Iterator[TextLine]:
        """Yield the lines of "train", "dev" or a test set. Raises UserError if a file changed after it was hashed."""
        if self.generated:
            sentences = (f"{english}\n" for english, _ in generate(set_name, self.generated))
            yield from self._in_documents(sentences)
            return
        for path in self.files(set_name):
            lines = read_raw(path, self.sha256(path))
            texts = (line.decode("utf-8", "surrogateescape" if self.raw else "strict") for line in lines)
            yield from self._in_documents(self._part(texts, set_name, path) if self.split else texts)

    def _in_documents(self, lines: Iterator[str]) -> Iterator[TextLine]:
        first = after_blank = True
        for line in lines:
            blank = not line.strip()
            starts = first or self.documents == "line" or (self.documents == "blank_line" and after_blank and not blank)
            for start in range(0, len(line), LONGEST):
                yield TextLine(line[start : start + LONGEST], starts and start == 0)
            first, after_blank = False, blank

    def _part(self, lines: Iterator[str], set_name: str, path: Path) -> Iterator[str]:
        count = self.fingerprints(None).facts(path).lines
        held = count // HELD_OUT
        bounds = {
            "train": (0, count - 2 * held),
            "dev": (count - 2 * held, count - held),
            "test": (count - held, count),
        }
        start, end = bounds[set_name]
        for place, line in enumerate(lines):  # read to the end, where the hash of the file is compared
            if start <= place < end:
                yield line

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Read and check every file once. Raises UserError for unusable files. Returns {}: it counts no rows."""
        facts = self.pinned(cache_dir).facts
        if self.split and (lines := facts[self.train[0]].lines) < HELD_OUT:
            raise UserError(
                f"{self.train[0]} has {number(lines, 'line')}: a single file is split by lines and needs at least "
                f"{HELD_OUT}. Put train.txt and dev.txt into a folder, and name that as the corpus."
            )
        return {}

    def _digest(self, content: Mapping[str, Any]) -> str:
        return digest({"documents": self.documents, **content})

    def _recipe(self, set_name: str) -> list[Any]:
        return [recipe_digest(self.generated), set_name]

    def _content(self, set_name: str, cache_dir: Path | None) -> list[Any]:
        content = super()._content(set_name, cache_dir)
        return [*content, f"{set_name} of 1/{HELD_OUT}"] if self.split else content


def resolve(data: TextData) -> TextCorpus:
    """Return the corpus of a configuration without reading its files. Raises UserError for missing files."""
    raw, how = data.units == "byte", data.documents
    if data.corpus == "builtin":
        if data.train or data.dev or data.test:
            raise UserError(
                "data.train, data.dev and data.test name files of a folder; the built-in text has its own sets "
                '("dev", "test"). Leave them out, or name a folder as data.corpus (--corpus).'
            )
        return TextCorpus("builtin", raw=raw, documents=how, tests={"test": ()}, generated=data.builtin_pairs)
    path = Path(data.corpus).expanduser()
    name = path.resolve().name
    if path.is_file():
        sets: dict[str, Any] = {"train": (path,), "dev": (path,), "tests": {"test": (path,)}, "split": True}
    else:
        sets = dict(zip(("train", "dev", "tests"), find(path, data), strict=True))
    return TextCorpus(name, raw=raw, documents=how, **sets)
