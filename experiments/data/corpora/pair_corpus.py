"""The PairCorpus contract: pairs of lines in named sets, which can be encoded and trained on. Imports no torch.

Parallel text (parallel.py) and trees over sentences (trees.py) implement it.
"""

import difflib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, Self

from experiments.errors import UserError


class PairCorpus(Protocol):
    """A corpus of line pairs. `source` and `target` name the sides: languages, or "words" and "trees"."""

    @property
    def name(self) -> str:
        """The corpus's name in messages."""

    @property
    def source(self) -> str:
        """Name of the source side."""

    @property
    def target(self) -> str:
        """Name of the target side."""

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets that can be evaluated: "dev", then the test sets."""

    def pinned(self, cache_dir: Path | None = None) -> Self:
        """This corpus fixed to the present content of its files: reading other content raises UserError.

        So the encoded content is the one that the digest names, even if someone edits the files meanwhile.
        """

    def read_pairs(self, set_name: str) -> Iterator[tuple[str, str]]:
        """The (source, target) lines of "train", "dev" or a test set, one pair at a time."""

    def check(self, cache_dir: Path | None = None) -> dict[str, int]:
        """Read and check every file once; returns set → number of pairs. Raises UserError for unusable files."""

    def training_digest(self, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of all training inputs; names and places of files do not matter."""

    def set_digest(self, set_name: str, cache_dir: Path | None = None) -> str:
        """16 hex digits of the content of one evaluated set."""


class HasSets(Protocol):
    """What `select_sets` asks of a corpus."""

    @property
    def name(self) -> str: ...

    @property
    def sets(self) -> tuple[str, ...]: ...


def select_sets(corpus: HasSets, names: Sequence[str]) -> tuple[str, ...]:
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
